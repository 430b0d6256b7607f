"""Signatures against the worked examples of the Amazon S3 API Reference (single chunk, Signature Version 4)."""

from __future__ import annotations

from kcover_ebpf.stores.sigv4 import Credentials, ObjectRequest, quoted, signed_headers

CREDENTIALS = Credentials("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
HOST = "examplebucket.s3.amazonaws.com"
CLOCK = "20130524T000000Z"


def test_signed_headers__the_example_that_reads_an_object() -> None:
    request = ObjectRequest("GET", HOST, "/test.txt", "us-east-1", b"", {"range": "bytes=0-9"})
    signed = signed_headers(request, CREDENTIALS, CLOCK)
    assert signed["authorization"] == (
        "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,"
        "SignedHeaders=host;range;x-amz-content-sha256;x-amz-date,"
        "Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"
    )


def test_signed_headers__the_example_that_writes_an_object() -> None:
    headers = {
        "date": "Fri, 24 May 2013 00:00:00 GMT",
        "x-amz-storage-class": "REDUCED_REDUNDANCY",
    }
    request = ObjectRequest(
        "PUT", HOST, "/test$file.text", "us-east-1", b"Welcome to Amazon S3.", headers
    )
    signed = signed_headers(request, CREDENTIALS, CLOCK)
    expected = "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd"
    assert signed["authorization"].endswith(f"Signature={expected}")


def test_signed_headers__the_token_of_temporary_credentials_is_sent_and_signed() -> None:
    temporary = Credentials("A", "S", "token-of-a-session")
    signed = signed_headers(ObjectRequest("GET", HOST, "/a", "eu-west-1"), temporary, CLOCK)
    assert signed["x-amz-security-token"] == "token-of-a-session"
    assert "x-amz-date;x-amz-security-token," in signed["authorization"]


def test_credentials__are_not_printed() -> None:
    text = repr(Credentials("A", "secret-1", "secret-2"))
    assert "secret" not in text.replace("secret_key", "")


def test_quoted__what_is_not_plain_is_quoted_once() -> None:
    assert quoted("/bucket/a b/ü+1.tar.gz") == "/bucket/a%20b/%C3%BC%2B1.tar.gz"
