"""One thin module a stage; stages exchange files, not objects."""
