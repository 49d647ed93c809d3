def save(*a): raise NotImplementedError
def load(*a): raise NotImplementedError
