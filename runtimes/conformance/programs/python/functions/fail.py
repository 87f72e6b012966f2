def invoke(request):
    raise ValueError("the cause of it")
