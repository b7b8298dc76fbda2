"""A service with Django: each order is charged once, and one report of a day is made at a time.

    DIBS_SERVER=unix:/tmp/dibs.sock PYTHONPATH=clients/python python3 examples/python/shop_django.py
"""
import itertools
import os
from wsgiref.simple_server import make_server

import dibs
from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse, JsonResponse
from django.urls import path

settings.configure(ALLOWED_HOSTS=["127.0.0.1"], ROOT_URLCONF=__name__, SECRET_KEY=os.urandom(32).hex())
keys = dibs.connect()  # one for the program: threads share it, and each worker of gunicorn has its own connections
charges = itertools.count(1)


def charge(request, order):
    result = keys.once(f"order {order}", lambda: {"charge": next(charges)}, keep="24h", with_origin=True)
    return JsonResponse(result.value, status=200 if result.replayed else 201)


def report(request, day):
    try:
        with keys.lock(f"report {day}", wait=0) as lease:
            return JsonResponse({"fence": lease.fence})
    except dibs.Held:
        return HttpResponse(status=409, headers={"Retry-After": "1"})


urlpatterns = [path("orders/<order>/charge", charge), path("reports/<day>", report)]
if __name__ == "__main__":
    server = make_server("127.0.0.1", int(os.environ.get("PORT", "8000")), get_wsgi_application())
    print("listening on", server.server_port, flush=True)
    server.serve_forever()
