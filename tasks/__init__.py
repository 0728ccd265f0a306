"""One module per stage; stages exchange files, not objects."""
