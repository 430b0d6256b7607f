"""What unit tests share: builders of facts and objects, scripted jobs, fakes."""
