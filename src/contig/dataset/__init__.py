"""Rollout files and interchange."""
