"""Classes and functions with the names, arguments and rhythm of other systems. The core never imports them."""
