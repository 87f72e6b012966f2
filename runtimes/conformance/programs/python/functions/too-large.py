def invoke(request):
    return {"outputs": {"x": "x" * 1100000}}
