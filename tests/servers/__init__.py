"""What every supported server has to show, and what needs a server that nothing brings along."""
