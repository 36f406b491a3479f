"""What the owner allows now: pause, hours, heat, power, idle time and traffic."""
