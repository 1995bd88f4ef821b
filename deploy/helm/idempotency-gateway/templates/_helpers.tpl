{{- define "gateway.name" -}}
{{- if .Values.fullnameOverride }}{{ .Values.fullnameOverride }}
{{- else if contains .Chart.Name .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-{{ .Chart.Name }}{{ end }}
{{- end }}

{{- define "gateway.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- /* Labels and annotations of an object: (list $ its-own-labels its-own-annotations). */}}
{{- define "gateway.metadata" -}}
{{- $root := index . 0 }}
{{- $labels := merge (include "gateway.labels" $root | fromYaml) (index . 1) $root.Values.commonLabels }}
labels:
  {{- toYaml $labels | nindent 2 }}
{{- with merge dict (index . 2) $root.Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "gateway.labels" -}}
{{ include "gateway.selector" . }}
app.kubernetes.io/part-of: {{ .Chart.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "gateway.image" -}}
{{- with .Values.image.digest }}
{{- if not (regexMatch "^sha256:[0-9a-f]{64}$" .) }}
{{- fail "image.digest: expected sha256: and 64 hexadecimal digits, as the push prints it" }}
{{- end }}
{{- end }}
{{- .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ with .Values.image.digest }}@{{ . }}{{ end }}
{{- end }}

{{- define "gateway.account" -}}
{{- if .Values.serviceAccount.create }}{{ .Values.serviceAccount.name | default (include "gateway.name" .) }}
{{- else }}{{ .Values.serviceAccount.name }}{{ end }}
{{- end }}

{{- define "gateway.port" -}}
{{- $listen := (.Values.config.listen | default "127.0.0.1:8080") }}
{{- if kindIs "map" $listen }}{{ $listen = $listen.address }}{{ end }}
{{- regexFind "[0-9]+$" $listen | default "8080" }}
{{- end }}

{{- define "gateway.statusPort" -}}
{{- $listen := ((.Values.config.status).listen | default "127.0.0.1:8081") }}
{{- if regexMatch "^(127\\.|localhost:|\\[::1\\])" $listen }}
{{- fail "config.status.listen: probes come from outside of the pod, so write 0.0.0.0:8081" }}
{{- end }}
{{- regexFind "[0-9]+$" $listen | default "8081" }}
{{- end }}

{{- define "gateway.env" -}}
{{- $secret := .Values.existingSecret }}
{{- range .Values.secretKeys }}
- name: {{ . }}
  valueFrom:
    secretKeyRef: {name: {{ $secret }}, key: {{ . }}}
{{- end }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* What mounts a directory below /run/secrets. 288 is 0440: private keys are for the gateway's group alone. */}}
{{- define "gateway.mounted" -}}
tls upstreamTls keys clientCa upstreamCa postgresCa redisCa jwtKeys
{{- end }}

{{- define "gateway.volumes" -}}
- name: config
  configMap: {name: {{ include "gateway.name" . }}}
{{- range $name := splitList " " (include "gateway.mounted" .) }}
{{- with index $.Values $name }}
{{- if and .secretName .configMapName }}{{ fail (printf "%s: a secretName or a configMapName, not both" $name) }}{{ end }}
{{- if .secretName }}
- name: {{ kebabcase $name }}
  secret: {secretName: {{ .secretName }}, defaultMode: 288}
{{- else if .configMapName }}
- name: {{ kebabcase $name }}
  configMap: {name: {{ .configMapName }}}
{{- end }}
{{- end }}
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "gateway.volumeMounts" -}}
{{- $places := list }}
- {name: config, mountPath: /etc/idempotency-gateway, readOnly: true}
{{- range $name := splitList " " (include "gateway.mounted" .) }}
{{- with index $.Values $name }}
{{- if or .secretName .configMapName }}
{{- $places = append $places (printf "/run/secrets/%s" (kebabcase $name)) }}
- {name: {{ kebabcase $name }}, mountPath: /run/secrets/{{ kebabcase $name }}, readOnly: true}
{{- end }}
{{- end }}
{{- end }}
{{- range .Values.extraVolumeMounts }}
{{- $places = append $places .mountPath }}
{{- end }}
{{- range $path := regexFindAll "/run/secrets/[a-z0-9-]+/" (toYaml .Values.config) -1 | uniq }}
{{- $found := false }}
{{- range $places }}{{ if or (hasPrefix . $path) (hasPrefix $path .) }}{{ $found = true }}{{ end }}{{ end }}
{{- if not $found }}
{{- fail (printf "config names a file in %s, and nothing is mounted there: write %s.secretName" $path (base $path | replace "-" "_" | camelcase | untitle)) }}
{{- end }}
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}
