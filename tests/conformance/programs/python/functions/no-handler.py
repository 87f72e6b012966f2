def other(request):
    return {}
