{{/* The namespace is part of the gateway's URL and of the identities that the signer knows: there is one. */}}
{{- define "kruntimes.namespace" -}}
{{- if ne .Release.Namespace "kruntimes-system" -}}
{{- fail "kruntimes is installed into the namespace kruntimes-system: helm install kruntimes … --namespace kruntimes-system --create-namespace" -}}
{{- end -}}
kruntimes-system
{{- end -}}

{{- define "kruntimes.selector" -}}
app.kubernetes.io/name: kruntimes
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "kruntimes.labels" -}}
{{ include "kruntimes.selector" . }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
app.kubernetes.io/part-of: kruntimes
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end -}}

{{- define "kruntimes.image" -}}
{{- $image := .root.Values.image -}}
{{ printf "%s/%s/%s:%s" $image.registry $image.repository .name (default .root.Chart.AppVersion $image.tag) }}
{{- end -}}

{{- define "kruntimes.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "kruntimes.podSecurity" -}}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  seccompProfile:
    type: RuntimeDefault
{{- end -}}

{{- define "kruntimes.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
{{- end -}}

{{/* Where Pods go: what the values say, and by default not all on one node. */}}
{{- define "kruntimes.placement" -}}
{{- with .values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "kruntimes.selector" . | nindent 8 }}
{{- end -}}

{{- define "kruntimes.signerUrl" -}}
https://kruntimes-controlplane.{{ include "kruntimes.namespace" . }}.svc:8444
{{- end -}}

{{- define "kruntimes.gatewayUrl" -}}
{{- if .Values.gateway.enabled -}}
https://runtime-gateway.{{ include "kruntimes.namespace" . }}.svc.{{ .Values.clusterDomain }}
{{- end -}}
{{- end -}}
