"""The manifest of a consumer: valid, and of one piece with the server and the command."""

import kubernetes_validate
import typer

from dualstream.consume.schemes import ConsumeOptions
from dualstream.service import cli
from dualstream.service.cli.consume import STOP_S
from tests.kubernetes.rendered import ROOT, container, pod, rendered, resource

PAGE = (ROOT / "docs" / "operate" / "kubernetes.md").read_text()


def test_the_consumer_is_valid_and_confined_as_a_server():
    deployment = resource("consumer", "Deployment")
    kubernetes_validate.validate(deployment, kubernetes_validate.latest_version(), strict=True)
    [of_consumer] = deployment["spec"]["template"]["spec"]["containers"]
    spec = deployment["spec"]["template"]["spec"]
    assert of_consumer["securityContext"] == container("sqlite")["securityContext"]
    assert spec["securityContext"] == pod("sqlite")["spec"]["securityContext"]
    assert of_consumer["image"] == container("sqlite")["image"]
    assert spec["terminationGracePeriodSeconds"] > STOP_S


def test_the_consumer_reaches_the_server_and_is_scraped():
    labels = resource("consumer", "Deployment")["spec"]["template"]["metadata"]["labels"]
    [admitted] = resource("sqlite", "NetworkPolicy")["spec"]["ingress"]
    assert admitted["from"][0]["podSelector"]["matchLabels"].items() <= labels.items()
    monitor = resource("consumer", "PodMonitor")["spec"]
    assert monitor["selector"]["matchLabels"].items() <= labels.items()
    [of_consumer] = resource("consumer", "Deployment")["spec"]["template"]["spec"]["containers"]
    [port] = of_consumer["ports"]
    assert monitor["podMetricsEndpoints"] == [{"port": port["name"]}]
    variables = {one["name"]: one for one in of_consumer["env"]}
    service = resource("sqlite", "Service")
    [served] = service["spec"]["ports"]
    address = f"http://{service['metadata']['name']}:{served['port']}"
    assert variables["DUALSTREAM_URL"]["value"] == address
    secret = variables["DUALSTREAM_API_KEY"]["valueFrom"]["secretKeyRef"]
    assert f"secret generic {secret['name']} --from-file={secret['key']}\n" in PAGE
    assert len(rendered("consumer")) == 2


def test_the_command_of_the_consumer_is_understood():
    [of_consumer] = resource("consumer", "Deployment")["spec"]["template"]["spec"]["containers"]
    name, *arguments = of_consumer["args"]
    _, command, _ = typer.main.get_group(cli.app).resolve_command(None, [name])
    parsed = command.make_context(name, arguments).params
    assert parsed["metrics_port"] == of_consumer["ports"][0]["containerPort"]
    parsed["columns"] = {}
    ConsumeOptions(**{name: parsed[name] for name in ConsumeOptions._fields}).check()
