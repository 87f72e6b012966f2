"""What tests share: a clock moved by hand, builders of objects, a Kubernetes API in memory. No test lives here."""
