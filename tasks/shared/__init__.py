"""What several hosts need: stores, and who may write to them."""
