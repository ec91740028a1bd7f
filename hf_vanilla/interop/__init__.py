"""What leaves and enters: the Hub, exports to other engines, and checkpoints of other toolkits."""
