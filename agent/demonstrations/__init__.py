"""Plans that show how, and the supervised training on them."""
