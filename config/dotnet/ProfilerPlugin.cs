// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

using System.Net;
using System.Net.Http.Headers;
using System.Net.Sockets;
using System.Text;
using OpenTelemetry;
using OpenTelemetry.AutoInstrumentation.PluginApi;
using OpenTelemetry.AutoInstrumentation.PluginApi.ContinuousProfiling;
using OpenTelemetry.AutoInstrumentation.PluginApi.SelectiveSampling;

namespace Hotprofile.Dotnet;

/// HOTPROFILE_ENDPOINT is http://host:port, or unix:/path/of/the.sock.
public sealed class ProfilerPlugin : IPlugin, IContinuousProfilerPlugin
{
    private const uint ThreadInterval = 1000; // ms

    private readonly BufferSender _sender = new(
        Environment.GetEnvironmentVariable("HOTPROFILE_ENDPOINT") ?? "http://localhost:4319",
        threadInterval: ThreadInterval, selectedInterval: 0);

    public void Initializing() { }

    public void Initialized() { }

    public ContinuousProfilerConfiguration GetFirstContinuousProfilerConfiguration() => new()
    {
        ThreadSamplingEnabled = true,
        ThreadSamplingInterval = ThreadInterval,
        AllocationSamplingEnabled = true,
        MaxMemorySamplesPerMinute = 200,
        ExportInterval = TimeSpan.FromMilliseconds(1000),
        ExportTimeout = TimeSpan.FromSeconds(2),
        Exporter = _sender,
    };
}

/// Sends each buffer at once, on the profiler's own thread, or drops it. The
/// profiler reuses the buffer for the next call, so nothing is queued.
internal sealed class BufferSender : IContinuousProfilerExporter, ISelectiveSamplerExporter
{
    private static readonly TimeSpan LongestPause = TimeSpan.FromMinutes(1);

    private readonly HttpClient _client;
    private readonly string _threads, _selected;
    private readonly string _resource = ResourceFromEnvironment();
    private long _pausedUntil; // Environment.TickCount64
    private int _logged;

    /// selectedInterval is 0 in a service without selective sampling.
    public BufferSender(string endpoint, uint threadInterval, uint selectedInterval)
    {
        var handler = new SocketsHttpHandler
        {
            MaxConnectionsPerServer = 2,
            ActivityHeadersPropagator = null,
            UseProxy = false,
        };
        var address = endpoint;
        if (endpoint.StartsWith("unix:", StringComparison.Ordinal))
        {
            var path = endpoint["unix:".Length..];
            address = "http://localhost"; // any host: the socket decides
            handler.ConnectCallback = (_, _) => ValueTask.FromResult<Stream>(Connect(path));
        }
        _client = new HttpClient(handler) { BaseAddress = new Uri(address), Timeout = Timeout.InfiniteTimeSpan };
        _threads = $"/v1/dotnet/thread-samples?interval={threadInterval}"
            + (selectedInterval > 0 ? "&frequent_sampling=true" : "");
        _selected = $"/v1/dotnet/selected-thread-samples?interval={selectedInterval}";
    }

    public void ExportThreadSamples(byte[] buffer, int read, CancellationToken cancellationToken) =>
        Send(_threads, buffer, read, cancellationToken);

    public void ExportAllocationSamples(byte[] buffer, int read, CancellationToken cancellationToken) =>
        Send("/v1/dotnet/allocation-samples", buffer, read, cancellationToken);

    public void ExportSelectedThreadSamples(byte[] buffer, int read, CancellationToken cancellationToken) =>
        Send(_selected, buffer, read, cancellationToken);

    private void Send(string path, byte[] buffer, int read, CancellationToken cancellationToken)
    {
        try
        {
            if (Environment.TickCount64 < Interlocked.Read(ref _pausedUntil))
            {
                Drop(null); // logged when the pause began
                return;
            }
            using var quiet = SuppressInstrumentationScope.Begin(); // no span of our own
            using var request = new HttpRequestMessage(HttpMethod.Post, path)
            {
                Content = new ByteArrayContent(buffer, 0, read),
            };
            request.Content.Headers.ContentType = new MediaTypeHeaderValue("application/octet-stream");
            request.Headers.TryAddWithoutValidation("Otel-Resource-Attributes", _resource);
            // Synchronous: the buffer is the profiler's again when this returns.
            using var response = _client.Send(request, cancellationToken);
            switch (response.StatusCode)
            {
                case HttpStatusCode.Accepted:
                    Interlocked.Exchange(ref _logged, 0);
                    return;
                case HttpStatusCode.ServiceUnavailable:
                    var pause = response.Headers.RetryAfter?.Delta ?? TimeSpan.FromSeconds(1);
                    if (pause > LongestPause)
                    {
                        pause = LongestPause;
                    }
                    Interlocked.Exchange(ref _pausedUntil, Environment.TickCount64 + (long)pause.TotalMilliseconds);
                    break;
            }
            Drop($"the collector answered {(int)response.StatusCode}: {ReadShort(response)}");
        }
        catch (Exception e)
        {
            // No socket, no server, timeout: it must not affect the service.
            Drop(e.Message);
        }
    }

    private void Drop(string? why)
    {
        if (why != null && Interlocked.Exchange(ref _logged, 1) == 0)
        {
            Console.Error.WriteLine($"hotprofile: profiles are dropped: {why}"); // once, until one is accepted again
        }
    }

    private static string ReadShort(HttpResponseMessage response)
    {
        using var reader = new StreamReader(response.Content.ReadAsStream());
        var text = new char[512];
        return new string(text, 0, reader.ReadBlock(text));
    }

    private static NetworkStream Connect(string path)
    {
        var socket = new Socket(AddressFamily.Unix, SocketType.Stream, ProtocolType.Unspecified);
        try
        {
            socket.Connect(new UnixDomainSocketEndPoint(path));
            return new NetworkStream(socket, ownsSocket: true);
        }
        catch
        {
            socket.Dispose();
            throw;
        }
    }

    private static string ResourceFromEnvironment()
    {
        var resource = new StringBuilder("telemetry.sdk.language=dotnet");
        var attributes = Environment.GetEnvironmentVariable("OTEL_RESOURCE_ATTRIBUTES");
        if (!string.IsNullOrEmpty(attributes))
        {
            resource.Append(',').Append(attributes.ReplaceLineEndings(""));
        }
        var name = Environment.GetEnvironmentVariable("OTEL_SERVICE_NAME");
        if (!string.IsNullOrEmpty(name))
        {
            resource.Append(",service.name=").Append(Uri.EscapeDataString(name)); // the last one wins
        }
        return resource.ToString();
    }
}
