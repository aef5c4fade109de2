"""What nodes cost, what was spent, what the budgets allow, and how long boots and stops take."""
