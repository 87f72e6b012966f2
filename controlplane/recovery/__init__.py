"""What happens when an owner does not: overdue claims, silent owners, and Pods that are gone for good (the fence)."""
