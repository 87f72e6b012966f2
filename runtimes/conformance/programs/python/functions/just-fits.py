def invoke(request):
    return {"outputs": {"x": "x" * 1000000}}
