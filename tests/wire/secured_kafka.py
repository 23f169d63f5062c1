"""Apache Kafka with listeners for TLS and for logins, beside the plain one, and certificates for both sides."""

from __future__ import annotations

import subprocess
from pathlib import Path

from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from tests.testkit import KafkaBroker, free_port

USER, PASSWORD = "alice", "alice's secret"
KEY_PASSWORD = "of the key"
SECURED = ("SSL", "SASL_PLAINTEXT", "SASL_SSL")


class SecuredKafka(KafkaBroker):
    """SSL wants a certificate of the client, SASL_SSL a login alone."""

    @property
    def directory(self) -> Path:
        return self.data.parent

    def bootstrap_of(self, protocol: str) -> str:
        return f"127.0.0.1:{self._ports[protocol]}"

    def add_scram_user(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            credential = UserScramCredentialUpsertion(USER, ScramCredentialInfo(mechanism, 4096), PASSWORD.encode())
            for done in admin.alter_user_scram_credentials([credential]).values():
                done.result(30)

    def _write_properties(self) -> None:
        make_certificates(self.directory)
        self._ports = {protocol: free_port() for protocol in SECURED}
        super()._write_properties()
        more = "".join(f",{protocol}://{self.bootstrap_of(protocol)}" for protocol in SECURED)
        lines = self.properties_path.read_text().splitlines()
        lines = [line + more if line.startswith(("listeners=", "advertised.listeners=")) else line for line in lines]
        login = f'org.apache.kafka.common.security.plain.PlainLoginModule required user_{USER}="{PASSWORD}";'
        scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        for listener in ("sasl_plaintext", "sasl_ssl"):
            lines += [
                f"listener.name.{listener}.plain.sasl.jaas.config={login}",
                f"listener.name.{listener}.scram-sha-256.sasl.jaas.config={scram}",
                f"listener.name.{listener}.scram-sha-512.sasl.jaas.config={scram}",
            ]
        protocols = ",".join(f"{protocol}:{protocol}" for protocol in ("PLAINTEXT", *SECURED))
        lines += [
            f"listener.security.protocol.map=CONTROLLER:PLAINTEXT,{protocols}",
            "listener.name.sasl_plaintext.sasl.enabled.mechanisms=SCRAM-SHA-512",
            "listener.name.sasl_ssl.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256",
            "listener.name.ssl.ssl.client.auth=required",
            "ssl.keystore.type=PEM",
            f"ssl.keystore.location={self.directory / 'server.pem'}",
            "ssl.truststore.type=PEM",
            f"ssl.truststore.location={self.directory / 'ca.pem'}",
        ]
        self.properties_path.write_text("\n".join(lines) + "\n")


def make_certificates(directory: Path) -> None:
    """ca.pem, another-ca.pem, server.pem (key and certificate), client.pem and client.key, which is encrypted."""
    for name in ("ca", "another-ca"):
        _openssl(
            directory, f"req -x509 -newkey rsa:2048 -nodes -keyout {name}.key -out {name}.pem -days 2 -subj /CN={name}"
        )
    names = directory / "names"
    names.write_text("subjectAltName=IP:127.0.0.1")
    for name in ("server", "client"):
        _openssl(directory, f"req -newkey rsa:2048 -nodes -keyout {name}.plain -out {name}.csr -subj /CN={name}")
        _openssl(
            directory,
            f"x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out {name}.crt -days 2 -extfile names",
        )
    (directory / "server.pem").write_text(
        "".join((directory / f"server.{each}").read_text() for each in ("plain", "crt"))
    )
    (directory / "client.pem").write_text((directory / "client.crt").read_text())
    subprocess.run(
        ["openssl", "pkcs8", "-topk8", "-in", "client.plain", "-out", "client.key", "-passout", f"pass:{KEY_PASSWORD}"],
        cwd=directory,
        check=True,
        capture_output=True,
    )


def _openssl(directory: Path, arguments: str) -> None:
    subprocess.run(["openssl", *arguments.split()], cwd=directory, check=True, capture_output=True)
