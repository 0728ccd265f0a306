"""Rules for whoever speaks HTTP to this machine: the environment, and the pages over documents."""
