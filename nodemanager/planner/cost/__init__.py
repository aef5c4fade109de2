"""What nodes cost, what budgets allow, and how long boots and stops take."""
