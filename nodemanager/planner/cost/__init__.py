"""What nodes cost, what the budgets allow, and how long boots and stops take."""
