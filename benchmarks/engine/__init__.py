"""Trainings whose episodes another engine plays, with weights that are slightly off."""
