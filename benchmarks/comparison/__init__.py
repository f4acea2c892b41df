"""How a long conversation fares with this library and with what people would use instead: cost, waiting, facts."""
