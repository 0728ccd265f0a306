"""The reward: four components as pure functions of plain values."""
