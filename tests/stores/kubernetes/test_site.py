"""URLs, pods and kubeconfigs: where the API server is, and who we are to it."""

from __future__ import annotations

import json
import sys
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from incumbent import clock
from incumbent.errors import ConfigError, StoreUnavailable
from incumbent.stores.kubernetes.login import Login, PluginCommand
from incumbent.stores.kubernetes.site import KubernetesSite, site_of_url
from tests.stores.party import soon

POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "6443"}


def config(folder: Path, *, name: str = "config", **parts: Any) -> dict[str, str]:
    """The environment with a kubeconfig of one context, `main`."""
    cluster = {"server": "https://api.example:6443/base/"} | parts.pop("cluster", {})
    context = {"cluster": "c", "user": "u"} | parts.pop("context", {})
    made = {
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": parts.pop("user", {"token": "abc"})}],
        "contexts": [{"name": "main", "context": context}],
    }
    path = folder / name
    path.write_text(json.dumps(made | parts))
    return {"KUBECONFIG": str(path)}


def account(folder: Path) -> dict[str, str]:
    for name, text in (("token", "t1\n"), ("namespace", "shop"), ("ca.crt", "")):
        (folder / name).write_text(text)
    return POD | {"INCUMBENT_SERVICE_ACCOUNT": str(folder)}


def test_in_a_pod_the_environment_and_the_service_account_say_all(tmp_path: Path) -> None:
    site = site_of_url("kubernetes:///", account(tmp_path))
    assert (site.where, site.namespace) == ("kubernetes:///shop", "shop")
    assert str(site.endpoint) == "10.0.0.1:6443"
    assert site.login.is_over
    site.login.fetch(soon(30.0))
    assert site.login.header == "Bearer t1"
    assert site.tls is not None
    assert site.tls.ca_certs == str(tmp_path / "ca.crt")


def test_the_url_names_another_namespace(tmp_path: Path) -> None:
    assert site_of_url("kubernetes:///other", account(tmp_path)).namespace == "other"


@pytest.mark.parametrize("missing", ["token", "ca.crt"])
def test_a_file_of_the_service_account_that_is_missing_is_said_at_once(
    tmp_path: Path, missing: str
) -> None:
    environ = account(tmp_path)
    (tmp_path / missing).unlink()
    with pytest.raises(ConfigError, match=f"{missing}, which says .*automountServiceAccountToken"):
        site_of_url("kubernetes:///", environ)


def test_a_token_that_is_rotated_is_read_again_even_after_a_moment_without_a_file(
    tmp_path: Path,
) -> None:
    login = site_of_url("kubernetes:///", account(tmp_path)).login
    login.fetch(soon(30.0))
    (tmp_path / "token").unlink()
    assert login.refused("Bearer t1")
    with pytest.raises(StoreUnavailable, match="cannot be read") as caught:
        login.fetch(soon(30.0))
    assert not caught.value.permanent
    (tmp_path / "token").write_text("t2")
    login.fetch(soon(30.0))
    assert login.header == "Bearer t2"


@pytest.mark.parametrize(
    "parts",
    [
        {"cluster": {"certificate-authority": "nowhere"}},
        {"user": {"tokenFile": "nowhere"}},
        {"user": {"client-certificate": "nowhere", "client-key": "nowhere"}},
    ],
)
def test_a_file_that_a_kubeconfig_names_and_that_is_missing_is_said_at_once(
    tmp_path: Path, parts: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match="nowhere, which says how to reach Kubernetes"):
        site_of_url("kubernetes://main/shop", config(tmp_path, **parts))


def test_outside_of_a_pod_the_url_has_to_name_a_context() -> None:
    with pytest.raises(ConfigError, match="kubernetes://CONTEXT/NAMESPACE"):
        site_of_url("kubernetes:///shop", {})
    with pytest.raises(ConfigError, match="is not set"):
        site_of_url("kubernetes:///shop", POD | {"KUBERNETES_SERVICE_PORT": "tcp://10.0.0.1"})


def test_a_context_says_where_and_who(tmp_path: Path) -> None:
    (tmp_path / "ca").touch()
    cluster = {"certificate-authority": "ca"}
    site = site_of_url("kubernetes://main/shop", config(tmp_path, cluster=cluster))
    assert site.where == "kubernetes://main/shop"
    assert str(site.endpoint) == "api.example:6443"
    assert site.base == "/base"
    assert site.login.header == "Bearer abc"
    assert not site.login.is_over
    assert site.tls is not None
    assert site.tls.ca_certs == str(tmp_path / "ca")
    assert site.tls.check_hostname


def test_the_namespace_of_a_context_counts_if_the_url_has_none(tmp_path: Path) -> None:
    environ = config(tmp_path, context={"namespace": "shop"})
    assert site_of_url("kubernetes://main/", environ).namespace == "shop"
    assert site_of_url("kubernetes://main/", config(tmp_path)).namespace == "default"


def test_a_context_with_slashes_is_percent_encoded(tmp_path: Path) -> None:
    contexts = [{"name": "arn:aws:eks:x:1:cluster/a", "context": {"cluster": "c", "user": "u"}}]
    environ = config(tmp_path, contexts=contexts)
    url = "kubernetes://arn%3Aaws%3Aeks%3Ax%3A1%3Acluster%2Fa/shop"
    assert site_of_url(url, environ).where == url


def test_of_several_kubeconfigs_the_first_that_has_a_name_counts(tmp_path: Path) -> None:
    first = config(tmp_path, name="a", user={"token": "first"})["KUBECONFIG"]
    second = config(tmp_path, name="b", user={"token": "second"})["KUBECONFIG"]
    environ = {"KUBECONFIG": f"{first}:{tmp_path / 'none'}:{second}"}
    assert site_of_url("kubernetes://main/shop", environ).login.header == "Bearer first"


def test_a_kubeconfig_may_be_yaml(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(
        "clusters:\n- name: c\n  cluster: {server: 'http://127.0.0.1:8001'}\n"
        "users: []\ncontexts:\n- name: main\n  context: {cluster: c}\n"
    )
    site = site_of_url("kubernetes://main/shop", {"KUBECONFIG": str(path)})
    assert site.tls is None
    assert site.login.header == ""


def test_without_pyyaml_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config").write_text("contexts:\n- name: main\n")
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(ConfigError, match=r"pip install 'incumbent\[kubernetes\]' .PyYAML>=6.0."):
        site_of_url("kubernetes://main/shop", {"KUBECONFIG": str(tmp_path / "config")})


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("kubernetes://main", "malformed"),
        ("kubernetes:shop", "malformed"),
        ("kubernetes://user:secret@host/shop", "malformed"),
        ("kubernetes://main/shop/more", "malformed"),
        ("kubernetes://main/Shop", "is not the name of a namespace"),
        ("kubernetes://other/shop", "no context 'other' in .*: there are main"),
        ("kubernetes://main/shop?ttl=3", "is not an option of this store"),
    ],
)
def test_a_url_that_cannot_work_says_why(tmp_path: Path, url: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as caught:
        site_of_url(url, config(tmp_path))
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ({"cluster": {"proxy-url": "http://p"}}, "proxies cannot be used"),
        ({"user": {"username": "a", "password": "s3cret"}}, "passwords"),
        ({"user": {"auth-provider": {}}}, "auth-provider"),
        ({"user": {"as": "admin"}}, "impersonation"),
        ({"clusters": []}, "lacks 'c'"),
        ({"user": {"client-certificate-data": "?"}}, "is not base64"),
    ],
)
def test_a_kubeconfig_that_cannot_be_used_says_why(
    tmp_path: Path, parts: dict[str, Any], why: str
) -> None:
    with pytest.raises(ConfigError, match=why) as caught:
        site_of_url("kubernetes://main/shop", config(tmp_path, **parts))
    assert "s3cret" not in str(caught.value)


def test_what_is_no_kubeconfig_is_said(tmp_path: Path) -> None:
    path = tmp_path / "config"
    for text, why in (("[1]", "is no kubeconfig"), ("a: [", "is neither JSON nor YAML")):
        path.write_text(text)
        with pytest.raises(ConfigError, match=why):
            site_of_url("kubernetes://main/shop", {"KUBECONFIG": str(path)})


# -- credentials -----------------------------------------------------------------------------------


def test_a_tokens_file_is_read_again_each_minute_and_when_it_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, now = tmp_path / "token", 1000.0
    monkeypatch.setattr(clock, "now", lambda: now)
    path.write_text("one")
    login = Login(file=str(path))
    login.fetch(soon(30.0))
    path.write_text("two")
    over = [login.is_over]
    now += 61.0
    assert [*over, login.is_over] == [False, True]
    login.fetch(soon(30.0))
    assert login.header == "Bearer two"
    assert login.refused("Bearer two")
    assert login.is_over
    assert login.refused("Bearer one"), "another thread has read a newer one"


def test_a_token_that_is_given_cannot_be_had_anew() -> None:
    assert not Login("abc").refused("Bearer abc")


def test_a_tokens_file_that_is_missing_is_said(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match=r"the token .*none cannot be read"):
        Login(file=str(tmp_path / "none")).fetch(soon())


def plugin(folder: Path, script: str, **parts: Any) -> PluginCommand:
    (folder / "plugin").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "plugin").chmod(0o755)
    made = {"apiVersion": "client.authentication.k8s.io/v1", "command": "./plugin"} | parts
    return PluginCommand(made, {"server": "https://api"}, str(folder))


def test_a_plugin_is_run_with_its_environment_and_its_token_used_until_it_ends(
    tmp_path: Path,
) -> None:
    status = '{"status": {"token": "\'$WHO\'", "expirationTimestamp": "2020-01-01T00:00:00Z"}}'
    made = plugin(
        tmp_path,
        f"echo \"$KUBERNETES_EXEC_INFO\" > {tmp_path}/info; echo '{status}'",
        env=[{"name": "WHO", "value": "me"}],
        provideClusterInfo=True,
    )
    login = Login(plugin=made)
    assert login.is_over
    login.fetch(soon(30.0))
    assert login.header == "Bearer me"
    assert login.is_over, "it ended in 2020"
    info = json.loads((tmp_path / "info").read_text())
    assert info["kind"] == "ExecCredential"
    assert info["spec"]["cluster"] == {"server": "https://api"}


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo no >&2; exit 3", "ended with 3: no"),
        ("echo '{}'", "'status'"),
        ("echo '{\"status\": {}}'", "neither a token nor a certificate"),
        ("echo '{\"status\": [1]}'", "makes no sense"),
        (
            'echo \'{"status": {"token": "x", "expirationTimestamp": "soon"}}\'',
            "makes no sense",
        ),
    ],
)
def test_a_plugin_that_fails_says_why(tmp_path: Path, script: str, why: str) -> None:
    login = Login(plugin=plugin(tmp_path, script))
    with pytest.raises(StoreUnavailable, match=why):
        login.fetch(soon(30.0))
    assert login.is_over
    assert not login.header


def test_data_of_certificates_is_decoded(tmp_path: Path) -> None:
    authority = b64encode(b"-----BEGIN").decode()
    environ = config(tmp_path, cluster={"certificate-authority-data": authority})
    site: KubernetesSite = site_of_url("kubernetes://main/shop", environ)
    assert site.tls is not None
    assert site.tls.ca_data == "-----BEGIN"
