"""The owner's limits: pause, hours, heat, power, idle time and traffic."""
