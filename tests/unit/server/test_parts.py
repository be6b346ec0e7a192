"""Keys, names, numbers: the parts that need no model."""

import errno
import socket

import pytest
from prometheus_client.parser import text_string_to_metric_families

from runtime.config import RunConfig, ServerConfig
from runtime.data.step import TokenLogprob
from runtime.errors import ConfigError, EngineError, RequestError
from runtime.server.errors import api_error_of
from runtime.server.histogram import Histogram
from runtime.server.keys import ApiKeys
from runtime.server.listen import is_loopback, open_socket, url_of
from runtime.server.logprobs import LEAST, TokenTexts, chat_logprobs, completion_logprobs
from runtime.server.process import name_of
from tests.serving import live_server, run_config
from tests.unit.text import vocabularies


class TestKeys:
    def test_a_file(self, tmp_path):
        path = tmp_path / "keys"
        path.write_text("# of the team\nsecret-1\n\n  secret-2  \n")
        keys = ApiKeys.from_file(str(path))
        assert keys.are_needed
        assert keys.admits("Bearer secret-1")
        assert keys.admits("bearer secret-2")
        for wrong in (None, "", "secret-1", "Bearer", "Bearer ", "Bearer secret", "Basic secret-1"):
            assert not keys.admits(wrong)
        assert not keys.admits("Bearer # of the team")

    @pytest.mark.parametrize(("text", "says"), [("# none\n", "holds no key"), (None, "No such")])
    def test_a_file_that_holds_none(self, tmp_path, text, says):
        path = tmp_path / "keys"
        if text is not None:
            path.write_text(text)
        with pytest.raises(ConfigError, match=rf"^server\.api_key_file: .*{says}"):
            ApiKeys.from_file(str(path))

    def test_none(self):
        assert ApiKeys.from_file(None).admits(None)
        assert not ApiKeys.from_file(None).are_needed

    def test_at_the_door(self, model):
        with live_server(run_config(model), ApiKeys(["secret"])) as live:
            for headers in ({}, {"Authorization": "Bearer nope"}):
                for path in ("/v1/models", "/nope"):
                    answer = live.http.get(path, headers=headers)
                    assert answer.status_code == 401
                    assert answer.json()["error"]["code"] == "invalid_api_key"
                    assert answer.headers["www-authenticate"] == "Bearer"
                    assert "nope" not in answer.text
                for path in ("/v1/completions", "/tokenize"):
                    assert live.post(path, {"prompt": "x"}, headers=headers).status_code == 401
            for path in ("/health", "/version", "/metrics", "/load"):
                assert live.http.get(path).status_code == 200
            headers = {"Authorization": "Bearer secret"}
            assert live.http.get("/v1/models", headers=headers).status_code == 200


class TestListening:
    def test_a_port_in_use(self):
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            port = other.getsockname()[1]
            with pytest.raises(ConfigError, match=rf"server\.port: 127\.0\.0\.1:{port} cannot"):
                open_socket(ServerConfig(port=port))

    @pytest.mark.parametrize("host", ["no.such.host.invalid", "203.0.113.1"])
    def test_an_address_that_is_not_ours(self, host):
        with pytest.raises(ConfigError, match=rf"server\.host: {host}:8000"):
            open_socket(ServerConfig(host=host))

    def test_where_it_listens(self):
        with open_socket(ServerConfig(port=0)) as listener:
            port = listener.getsockname()[1]
            assert url_of(listener) == f"http://127.0.0.1:{port}"
            assert is_loopback(listener)
        with open_socket(ServerConfig(host="0.0.0.0", port=0)) as listener:
            assert not is_loopback(listener)


@pytest.mark.parametrize(
    ("path", "given", "name"),
    [("a/b/model.Q8_0.gguf", None, "model.Q8_0"), ("a/b/", None, "b"), ("a/b", "mine", "mine")],
)
def test_what_clients_call_the_model(path, given, name):
    config = RunConfig(model={"path": path}, server={"model_name": given})
    assert name_of(config) == name


def test_the_bytes_of_max_body():
    assert ServerConfig(max_body="2MiB").max_body == 2 * 1024**2
    with pytest.raises(ConfigError, match=r"^server\.max_body: must be"):
        ServerConfig(max_body="much")


def test_errors_of_the_runtime():
    told = api_error_of(RequestError("token_ids", "must not be empty"))
    assert (told.status, told.param) == (400, "prompt")
    assert told.body["error"]["message"] == "prompt: must not be empty"
    assert api_error_of(EngineError("gone")).status == 503
    assert api_error_of(OSError(errno.EIO, "x")).kind == "server_error"


def test_minus_infinity_can_be_written():
    entries = [TokenLogprob(65, float("-inf"), 3), TokenLogprob(66, -0.5, 1)]
    texts = TokenTexts(vocabularies.byte_level())
    assert chat_logprobs([entries], 1, texts)["content"][0]["logprob"] == LEAST
    found = completion_logprobs([entries], 1, texts)
    assert found["token_logprobs"] == [LEAST]
    assert found["top_logprobs"] == [{"B": -0.5, "A": LEAST}]


def test_tokens_that_are_no_text():
    texts = TokenTexts(vocabularies.byte_level())
    [entry] = chat_logprobs([[TokenLogprob(0xE4, -1.0, 1)]], 0, texts)["content"]
    assert (entry["token"], entry["bytes"]) == ("\ufffd", [0xE4])
    assert TokenTexts(None).text_of(7) == "token_id:7"


def test_a_histogram_counts_each_value_once():
    histogram = Histogram([1.0, 2.0])
    histogram.add([0.5, 1.0, 1.5, 2.0, 3.0, None])
    histogram.add([])
    assert histogram.buckets() == ([("1.0", 2.0), ("2.0", 4.0), ("+Inf", 5.0)], 8.0)


def test_metrics_count_what_was_served(model):
    def value(live, name, **labels):
        text = live.http.get("/metrics").text
        families = list(text_string_to_metric_families(text))
        found = [s for f in families for s in f.samples if s.name == name]
        return sum(s.value for s in found if labels.items() <= s.labels.items())

    with live_server(run_config(model)) as live:
        body = {"prompt": "hello", "n": 2, "max_tokens": 6, "ignore_eos": True}
        assert live.post("/v1/completions", body).status_code == 200
        assert live.post("/v1/completions", {"prompt": ""}).status_code == 400
        assert value(live, "vllm:generation_tokens_total", model_name="tiny") == 12
        assert value(live, "vllm:prompt_tokens_total") == 5
        assert value(live, "vllm:request_success_total", finished_reason="length") == 2
        assert value(live, "vllm:time_to_first_token_seconds_count") == 2
        assert value(live, "vllm:inter_token_latency_seconds_count") == 10
        assert value(live, "vllm:e2e_request_latency_seconds_bucket", le="+Inf") == 2
        assert value(live, "vllm:num_requests_running") == 0
        assert value(live, "stepgraph:http_responses_total", status="400") == 1
        assert value(live, "stepgraph:steps_total") >= 6
        assert value(live, "stepgraph:scheduled_tokens_total") > 0


def test_facts(live):
    [card] = live.http.get("/v1/models").json()["data"]
    assert (card["id"], card["object"], card["max_model_len"]) == ("tiny", "model", 4096)
    assert live.http.get("/v1/models/tiny").json() == card
    assert live.http.get("/version").json()["version"]
    assert live.http.get("/health").json() == {"status": "ok"}


def test_tokens_and_back(live):
    found = live.post("/tokenize", {"prompt": "h\u00e9", "return_token_strs": True}).json()
    assert found["tokens"] == list("h\u00e9".encode())
    assert (found["count"], found["max_model_len"], len(found["token_strs"])) == (3, 4096, 3)
    assert live.post("/detokenize", {"tokens": found["tokens"]}).json() == {"prompt": "h\u00e9"}
    chat = live.post("/tokenize", {"messages": [{"role": "user", "content": "x"}]}).json()
    assert bytes(chat["tokens"]) == b"[user] x\n[assistant]"
    for path, body in (
        ("/tokenize", {}),
        ("/tokenize", {"prompt": "x", "messages": []}),
        ("/detokenize", {"tokens": [10**6]}),
        ("/detokenize", {"tokens": "x"}),
    ):
        assert live.post(path, body).status_code == 400
