{{- define "hotprofile.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" -}}
{{- end }}

{{- define "hotprofile.fullname" -}}
{{- $name := include "hotprofile.name" . -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end }}

{{- define "hotprofile.account" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "hotprofile.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end }}

{{- define "hotprofile.selector" -}}
app.kubernetes.io/name: {{ include "hotprofile.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "hotprofile.labels" -}}
{{ include "hotprofile.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{/* Refuses values that the schema cannot refuse with a clear error. */}}
{{- define "hotprofile.check" -}}
{{- if and .Values.gateway.console.enabled (not .Values.gateway.enabled) }}
{{- fail "gateway.console.enabled needs gateway.enabled: the console is a part of the gateway" }}
{{- end }}
{{- if not (or .Values.otlp.endpoint .Values.gateway.console.enabled) }}
{{- fail "otlp.endpoint is empty: set it to your backend's host:port, or set gateway.enabled and gateway.console.enabled" }}
{{- end }}
{{- if and .Values.gateway.console.enabled (gt (int .Values.gateway.replicas) 1) }}
{{- fail "gateway.replicas must be 1 with gateway.console.enabled: each console would show only the share of the nodes that its pod receives" }}
{{- end }}
{{- if and .Values.gateway.console.allowedHosts (not .Values.gateway.console.authSecret) }}
{{- fail "gateway.console.allowedHosts needs gateway.console.authSecret: without it, the console listens on the pod's localhost only" }}
{{- end }}
{{- $enforced := dig "metadata" "labels" "pod-security.kubernetes.io/enforce" "" (lookup "v1" "Namespace" "" .Release.Namespace) }}
{{- if has $enforced (list "baseline" "restricted") }}
{{- fail (printf "the namespace %s enforces pod security %q, which refuses hostPID, the host's root and the agent's capabilities: run `kubectl label --overwrite namespace %s pod-security.kubernetes.io/enforce=privileged`, or install in a namespace of its own" .Release.Namespace $enforced .Release.Namespace) }}
{{- end }}
{{- end }}

{{- define "hotprofile.telemetry" -}}
telemetry: {metrics: {readers: [{pull: {exporter: {prometheus: {host: "0.0.0.0", port: {{ . }}}}}}]}}
{{- end }}

{{- define "hotprofile.memoryLimiter" -}}
memory_limiter: {limit_mib: {{ div (mul 3 .) 4 }}, spike_limit_mib: {{ div (mul 3 .) 16 }}}
{{- end }}

{{- define "hotprofile.agent.config" -}}
{{- $changes := fromYaml (include "hotprofile.agent.changes" .) -}}
{{- mergeOverwrite (.Files.Get "files/kubernetes.yaml" | fromYaml) $changes .Values.agent.config | toYaml -}}
{{- end }}

{{- define "hotprofile.agent.changes" -}}
processors:
  {{ include "hotprofile.memoryLimiter" .Values.agent.memoryMiB }}
{{- if .Values.gateway.console.enabled }}
receivers:
  hot_units: {}
{{- end }}
service:
{{- if .Values.podMonitor.enabled }}
  {{ include "hotprofile.telemetry" 8888 }}
{{- end }}
  pipelines:
{{- if .Values.gateway.console.enabled }}
    logs: {receivers: [hot_units], processors: [memory_limiter], exporters: [otlp_grpc]}
    metrics: {receivers: [hot_units], processors: [memory_limiter], exporters: [otlp_grpc]}
{{- else }} {}
{{- end }}
{{- end }}

{{- define "hotprofile.gateway.config" -}}
{{- $config := mergeOverwrite (.Files.Get "files/gateway.yaml" | fromYaml) (fromYaml (include "hotprofile.gateway.changes" .)) -}}
{{- if not .Values.otlp.endpoint }}{{ $_ := unset $config.exporters "otlp_grpc" }}{{ $_ := unset $config.extensions "inline_attributes" }}{{ end -}}
{{- mergeOverwrite $config .Values.gateway.config | toYaml -}}
{{- end }}

{{- define "hotprofile.gateway.changes" -}}
{{- $console := .Values.gateway.console -}}
processors:
  {{ include "hotprofile.memoryLimiter" .Values.gateway.memoryMiB }}
{{- if $console.enabled }}
exporters:
  console: {}
extensions:
  console:
    directory: /var/lib/otelcol-hotprofile/console
{{- if $console.authSecret }}
    endpoint: 0.0.0.0:4042
    auth: {authenticator: basicauth/console}
    allowed_hosts: {{ toJson $console.allowedHosts }}
  basicauth/console:
    htpasswd: {file: /etc/otelcol-hotprofile-console/htpasswd}
{{- end }}
{{- end }}
service:
{{- if .Values.podMonitor.enabled }}
  {{ include "hotprofile.telemetry" 8890 }}
{{- end }}
{{- if $console.enabled }}
  extensions:
    - health_check
    - console
{{- if $console.authSecret }}
    - basicauth/console
{{- end }}
{{- if .Values.otlp.endpoint }}
    - inline_attributes
{{- end }}
  pipelines:
    profiles: {exporters: [{{ if .Values.otlp.endpoint }}otlp_grpc, {{ end }}console]}
    logs: {receivers: [otlp], processors: [memory_limiter], exporters: [console]}
    metrics: {receivers: [otlp], processors: [memory_limiter], exporters: [console]}
{{- else }}
  pipelines: {}
{{- end }}
{{- end }}

{{- /* The arguments are the parts of a pod that agent and gateway have in common. */}}
{{- define "hotprofile.pod.metadata" -}}
labels:
  {{- include "hotprofile.selector" .root | nindent 2 }}
  app.kubernetes.io/component: {{ .component }}
  {{- with .values.podLabels }}{{ toYaml . | nindent 2 }}{{ end }}
annotations:
  checksum/config: {{ .config | sha256sum }}
  {{- with .values.podAnnotations }}{{ toYaml . | nindent 2 }}{{ end }}
{{- end }}

{{- define "hotprofile.pod.placement" -}}
nodeSelector:
  kubernetes.io/os: linux
  {{- with .values.nodeSelector }}{{ toYaml . | nindent 2 }}{{ end }}
{{- with .values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "hotprofile.container" -}}
image: {{ .root.Values.image.repository }}:{{ default .root.Chart.AppVersion .root.Values.image.tag }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
args: [--config, /etc/otelcol-hotprofile/config.yaml]
resources:
  requests: {{- toYaml .values.requests | nindent 4 }}
  limits: {memory: {{ .values.memoryMiB }}Mi}
startupProbe:
  httpGet: &health {path: /, port: health{{ with .probeHost }}, host: {{ . }}{{ end }}}
  periodSeconds: 2
  failureThreshold: 60
livenessProbe:
  httpGet: *health
  periodSeconds: 30
  timeoutSeconds: 5
  failureThreshold: 4
readinessProbe:
  httpGet: *health
{{- end }}

{{- define "hotprofile.env" -}}
- {name: GOMEMLIMIT, value: {{ div (mul 4 .values.memoryMiB) 5 }}MiB}
- {name: HOTPROFILE_OTLP_ENDPOINT, value: {{ .endpoint | quote }}}
- {name: HOTPROFILE_OTLP_INSECURE, value: {{ .insecure | quote }}}
{{- with .values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}
