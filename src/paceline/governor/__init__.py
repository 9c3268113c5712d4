"""How much to draft, and when not to: costs, estimates, the budget, the account, the reasons."""
