"""Who may call: what is asked, how long it is remembered, what is never remembered."""

import asyncio
import base64
import json
from collections.abc import Callable
from typing import cast

import pytest

from controlplane.kube.api import Kube
from controlplane.kube.types import SubjectAccessReview, TokenReview, UserInfo
from dataplane.gateway import reviews
from dataplane.gateway.auth import Gatekeeper
from dataplane.gateway.credentials import BearerToken, bearer_token, client_certificate
from dataplane.gateway.http1 import Head, RequestParser
from dataplane.gateway.reviews import ReviewFailed, Verdict
from tests.gateway.stage import FakeKube, Stage, run_fact
from tests.kit.clock import ManualClock
from tests.kit.waiting import eventually


class Desk:
    """A gatekeeper with a clock that moves by hand."""

    def __init__(self) -> None:
        self.kube = FakeKube()
        self.clock = ManualClock()
        self.gatekeeper = Gatekeeper(cast(Kube, self.kube), self.clock)

    async def user(self, token: str = "good") -> Verdict[object]:
        credential = token_of(token)
        known = self.gatekeeper.user_known(credential)
        return cast(Verdict[object], known if known is not None else await self.gatekeeper.authenticate(credential))

    async def may(self, token: str = "good", name: str = "hello") -> bool:
        credential = token_of(token)
        user = (await self.gatekeeper.authenticate(credential)).value
        assert user is not None
        return (await self.gatekeeper.authorize(credential, user, run_fact(name=name))).allowed


def token_of(token: str) -> BearerToken:
    result = RequestParser().feed(f"GET / HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {token}\r\n\r\n".encode())
    assert result is not None
    assert isinstance(result[0], Head)
    credential = bearer_token(result[0])
    assert credential is not None
    return credential


def jwt(**claims: object) -> str:
    payload = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"e30.{payload}.c2ln"


@pytest.fixture
async def desk() -> Desk:
    return Desk()


async def test_a_decision_is_asked_once_and_lives_thirty_seconds(desk: Desk) -> None:
    for _ in range(5):
        assert await desk.may()
    assert desk.gatekeeper.reviews_asked == (1, 1)
    desk.clock.advance(30)
    assert await desk.may()
    assert desk.gatekeeper.reviews_asked == (2, 2)


async def test_a_decision_in_use_is_asked_again_before_it_ends_and_nobody_waits_for_that(desk: Desk) -> None:
    await desk.user()
    desk.clock.advance(21)
    desk.kube.answering.clear()
    for _ in range(3):
        assert (await desk.user()).allowed
    assert desk.gatekeeper.reviews_asked[0] == 2
    desk.kube.answering.set()
    await eventually(lambda: not desk.gatekeeper._users._asking)
    desk.clock.advance(19)
    assert (await desk.user()).allowed
    assert desk.gatekeeper.reviews_asked[0] == 2


async def test_a_decision_that_nobody_uses_is_not_asked_again(desk: Desk) -> None:
    await desk.user()
    desk.clock.advance(100)
    assert desk.gatekeeper.reviews_asked[0] == 1


async def test_a_revoked_grant_ends_within_thirty_seconds_under_constant_use(desk: Desk) -> None:
    assert await desk.may()
    desk.kube.allowed.clear()
    for _ in range(60):
        desk.clock.advance(0.5)
        await desk.may()
        await eventually(lambda: not desk.gatekeeper._grants._asking)
    assert not await desk.may()


async def test_a_denial_lives_five_seconds(desk: Desk) -> None:
    desk.kube.allowed.clear()
    assert not await desk.may()
    desk.kube.allowed.add(("jane", "hello"))
    desk.clock.advance(4.9)
    assert not await desk.may()
    desk.clock.advance(0.1)
    assert await desk.may()


async def test_a_decision_never_outlives_its_token(desk: Desk) -> None:
    token = jwt(exp=desk.clock.now_us() / 1e6 + 10)
    desk.kube.users[token] = UserInfo(username="jane")
    assert (await desk.user(token)).allowed
    del desk.kube.users[token]
    desk.clock.advance(9.9)
    assert (await desk.user(token)).allowed
    desk.clock.advance(0.1)
    assert not (await desk.user(token)).allowed


async def test_callers_at_once_share_one_question(desk: Desk) -> None:
    desk.kube.answering.clear()
    waiting = [asyncio.create_task(desk.user()) for _ in range(20)]
    await eventually(lambda: len(desk.kube.asked) > 0)
    waiting[0].cancel()
    desk.kube.answering.set()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert sum(isinstance(result, Verdict) and result.allowed for result in results) == 19
    assert len(desk.kube.asked) == 1


async def test_a_flood_of_unknown_credentials_does_not_reach_the_api_whole(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reviews, "REVIEWS_IN_FLIGHT_MAX", 4)
    desk.kube.answering.clear()
    waiting = [asyncio.create_task(desk.user(f"bad-{number}")) for number in range(20)]
    await eventually(lambda: sum(task.done() for task in waiting) == 16)
    desk.kube.answering.set()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert sum(isinstance(result, ReviewFailed) for result in results) == 16
    assert len(desk.kube.asked) == 4
    assert (await desk.user()).allowed


async def test_a_flood_of_bad_tokens_displaces_no_good_caller_and_is_not_kept(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reviews, "REVIEWS_MAX", 4)
    monkeypatch.setattr(reviews, "REVIEWS_DENIED_MAX", 8)
    assert await desk.may()
    for number in range(100):
        assert not (await desk.user(f"bad-{number}")).allowed
    asked = desk.gatekeeper.reviews_asked
    assert await desk.may()
    assert desk.gatekeeper.reviews_asked == asked
    assert len(desk.gatekeeper._users._denied) == 8


async def test_an_api_that_fails_is_not_asked_at_every_call_of_a_known_caller(desk: Desk) -> None:
    assert await desk.may()
    asked = sum(desk.gatekeeper.reviews_asked)
    desk.kube.down = True
    desk.clock.advance(20)
    for _ in range(80):  # 8 of the last 10 seconds of the decisions
        desk.clock.advance(0.1)
        assert await desk.may()
        await eventually(lambda: not desk.gatekeeper._users._asking and not desk.gatekeeper._grants._asking)
    assert sum(desk.gatekeeper.reviews_asked) - asked <= 2 * 9


async def test_a_failure_is_told_and_never_remembered(desk: Desk) -> None:
    desk.kube.down = True
    with pytest.raises(ReviewFailed):
        await desk.user()
    desk.kube.down = False
    assert (await desk.user()).allowed


async def test_cached_callers_go_on_while_the_api_is_away_and_no_longer(desk: Desk) -> None:
    assert await desk.may()
    desk.kube.down = True
    desk.clock.advance(29.9)
    assert await desk.may()
    desk.clock.advance(0.1)
    with pytest.raises(ReviewFailed):
        await desk.may()


async def test_the_questions_say_what_they_must(desk: Desk) -> None:
    own = jwt(aud=["kruntimes"])
    desk.kube.users[own] = UserInfo(username="jane", uid="u", groups=("a", "b"), extra={"k": ("v",)})
    await desk.may(own)
    await desk.user("opaque")
    await desk.user(jwt(aud="https://kubernetes.default.svc"))
    first, access, opaque, other = desk.kube.asked
    assert isinstance(first, TokenReview)
    assert first.spec.audiences == ("kruntimes",)
    assert isinstance(access, SubjectAccessReview)
    spec = access.spec
    assert (spec.user, spec.uid, spec.groups, spec.extra) == ("jane", "u", ("a", "b"), {"k": ("v",)})
    attributes = spec.resource_attributes
    assert attributes is not None
    assert (attributes.verb, attributes.group, attributes.resource) == ("get", "kruntimes.io", "runs")
    assert (attributes.namespace, attributes.name) == ("default", "hello")
    assert isinstance(opaque, TokenReview)
    assert isinstance(other, TokenReview)
    assert opaque.spec.audiences == other.spec.audiences == ()


async def test_the_same_run_name_elsewhere_is_another_question(desk: Desk) -> None:
    assert await desk.may()
    assert not await desk.may(name="other") or desk.gatekeeper.reviews_asked[1] == 1
    desk.kube.users["second"] = UserInfo(username="joe")
    assert not await desk.may("second")


def test_a_credential_shows_nothing_of_itself() -> None:
    raw = b"GET / HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer top-secret\r\n\r\n"
    result = RequestParser().feed(raw)
    assert result is not None
    assert "top-secret" not in repr(result[0])
    assert isinstance(result[0], Head)
    assert "top-secret" not in repr(bearer_token(result[0]))


@pytest.mark.parametrize(
    "value", ["", "Bearer", "Bearer ", "Bearer a b", "bearer\ta", "Basic YTpi", "Bearer a,b", "Bearer ä", "Token x"]
)
def test_what_is_no_bearer_token_is_no_credential(value: str) -> None:
    result = RequestParser().feed(f"GET / HTTP/1.1\r\nHost: h\r\nAuthorization: {value}\r\n\r\n".encode("latin-1"))
    assert result is not None
    assert isinstance(result[0], Head)
    assert bearer_token(result[0]) is None


class Certified:
    def __init__(self, **facts: object) -> None:
        self.facts = {"notAfter": "Nov 29 18:00:00 2036 GMT", **facts}

    def getpeercert(self, binary: bool = False) -> object:
        return b"der" if binary else self.facts


Subject = Callable[..., Certified]
PEOPLE = ((("commonName", "admin"),), (("organizationName", "system:masters"),), (("organizationName", "dev"),))


def test_a_client_certificate_is_its_common_name_and_organisations() -> None:
    credential = client_certificate(Certified(subject=PEOPLE))
    assert credential is not None
    assert (credential.user.name, credential.user.groups) == ("admin", ("system:masters", "dev"))
    assert client_certificate(Certified(subject=())) is None
    assert client_certificate(Certified(subject=((("commonName", "a"),), (("commonName", "b"),)))) is None
    assert client_certificate(None) is None


def test_a_machine_of_ours_is_no_user_of_the_cluster() -> None:
    names = (("DNS", "x"), ("URI", "kruntimes://runtimed/default/python/pod"))
    assert client_certificate(Certified(subject=PEOPLE, subjectAltName=names)) is None


async def test_a_certificate_needs_no_token_review_and_ends_when_it_ends(desk: Desk) -> None:
    credential = client_certificate(Certified(subject=PEOPLE))
    assert credential is not None
    verdict = await desk.gatekeeper.authenticate(credential)
    assert verdict.value is not None
    assert "system:authenticated" in verdict.value.groups
    assert desk.kube.asked == []
    desk.clock.jump(credential.expires_s - desk.clock.now_us() / 1e6)
    known = desk.gatekeeper.user_known(credential)
    assert known is not None
    assert not known.allowed


async def test_an_api_that_cannot_be_asked_is_503_for_new_callers_only(gateway: Stage) -> None:
    client = await gateway.client()
    assert (await client.request()).status == 200
    gateway.kube.down = True
    assert (await client.request()).status == 200
    response = await client.request(headers={"Authorization": "Bearer new"})
    assert (response.status, response.reason) == (503, "AuthorizationUnavailable")
