//! The service as tonic meets it. Prints what it saw as JSON.

use std::time::Duration;

use prost::Message;
use serde_json::{json, Value};
use tokio_stream::StreamExt;
use tonic::client::Grpc;
use tonic::codec::CompressionEncoding;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};
use tonic_prost::ProstCodec;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_types::StatusExt;

const SERVICE: &str = "throttlekit.v1.RateLimiter";

#[derive(Clone, PartialEq, Message)]
struct CheckRequest {
    #[prost(string, tag = "1")]
    policy: String,
    #[prost(string, tag = "2")]
    key: String,
}

#[derive(Clone, PartialEq, Message)]
struct Decision {
    #[prost(bool, tag = "1")]
    allowed: bool,
    #[prost(int64, tag = "3")]
    remaining: i64,
}

#[derive(Clone, PartialEq, Message)]
struct CheckResponse {
    #[prost(message, tag = "1")]
    decision: Option<Decision>,
}

async fn check(channel: &Channel, policy: &str, gzip: bool) -> Result<Value, Status> {
    let mut client = Grpc::new(channel.clone());
    if gzip {
        client = client
            .send_compressed(CompressionEncoding::Gzip)
            .accept_compressed(CompressionEncoding::Gzip);
    }
    client.ready().await.map_err(|error| Status::unknown(error.to_string()))?;
    let request = CheckRequest { policy: policy.into(), key: "rust".into() };
    let path = "/throttlekit.v1.RateLimiter/Check".parse().unwrap();
    let codec: ProstCodec<CheckRequest, CheckResponse> = ProstCodec::default();
    let decision = client.unary(Request::new(request), path, codec).await?.into_inner().decision;
    let decision = decision.unwrap_or_default();
    Ok(json!({"decision": {"allowed": decision.allowed, "remaining": decision.remaining.to_string()}}))
}

fn refused(status: &Status) -> Value {
    let retry = status.get_details_retry_info().and_then(|info| info.retry_delay);
    json!({
        "code": status.code() as i32,
        "text": status.message(),
        "retry_ms": retry.map(|delay| delay.as_millis() as u64),
    })
}

async fn services(channel: &Channel) -> Result<Vec<String>, Status> {
    let request = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let mut client = ServerReflectionClient::new(channel.clone());
    let mut told = client.server_reflection_info(tokio_stream::once(request)).await?.into_inner();
    match told.message().await?.and_then(|reply| reply.message_response) {
        Some(MessageResponse::ListServicesResponse(list)) => {
            Ok(list.service.into_iter().map(|one| one.name).collect())
        }
        other => Err(Status::unknown(format!("{other:?}"))),
    }
}

/// A stream that stays open until it is cancelled, or its deadline has come.
async fn watch(
    channel: &Channel,
    deadline: Option<Duration>,
) -> Result<(tonic::Streaming<HealthCheckResponse>, &'static str), Status> {
    let mut request = Request::new(HealthCheckRequest { service: SERVICE.into() });
    if let Some(deadline) = deadline {
        request.set_timeout(deadline);
    }
    let mut stream = HealthClient::new(channel.clone()).watch(request).await?.into_inner();
    let reply = stream.message().await?.unwrap_or_default();
    Ok((stream, reply.status().as_str_name()))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1).ok_or("ADDRESS")?;
    let channel = Endpoint::from_shared(format!("http://{address}"))?.connect().await?;
    let mut found = json!({"services": services(&channel).await?});
    found["check"] = check(&channel, "plenty", false).await?;
    found["gzip"] = check(&channel, "plenty", true).await?;
    found["unknown"] = refused(&check(&channel, "nope", false).await.unwrap_err());
    let probe = Request::new(HealthCheckRequest { service: String::new() });
    let told = HealthClient::new(channel.clone()).check(probe).await?.into_inner();
    found["health"] = json!(told.status().as_str_name());

    let (cancelled, status) = watch(&channel, None).await?;
    found["watch"] = json!(status);
    let (mut late, _) = watch(&channel, Some(Duration::from_secs(3))).await?;
    found["refused"] = refused(&watch(&channel, None).await.unwrap_err());
    // To cancel is to let go of the stream.
    drop(cancelled);
    let ended = late.next().await.and_then(Result::err);
    found["deadline"] = json!(ended.map(|status| status.code() as i32));
    found["again"] = json!(watch(&channel, None).await?.1);
    found["last"] = check(&channel, "plenty", false).await?;
    println!("{found}");
    Ok(())
}
