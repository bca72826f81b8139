def describe_effective(scores):
    return []


def effective_length(scores):
    return None
