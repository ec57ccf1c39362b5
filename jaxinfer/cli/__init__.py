"""What the commands share: flags, errors and exit statuses, statistics, named model shapes."""
