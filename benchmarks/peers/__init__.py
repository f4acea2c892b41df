"""One adapter a file: how each library that is compared keeps a conversation within its budget."""
