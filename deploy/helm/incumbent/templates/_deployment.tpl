{{/* All take (dict "root" $ "part" NAME): the chart's context and the part of the fleet.
Not run: see values.yaml. */}}
{{- define "incumbent.name" -}}
{{ .root.Release.Name }}-{{ .part }}
{{- end }}

{{- define "incumbent.account" -}}
{{ .root.Values.serviceAccount.name | default .root.Release.Name }}
{{- end }}

{{- define "incumbent.labels" -}}
app.kubernetes.io/name: incumbent
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .part }}
{{- end }}

{{- define "incumbent.metadata" -}}
name: {{ include "incumbent.name" . }}
labels:
  {{- include "incumbent.labels" . | nindent 2 }}
  app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
  app.kubernetes.io/managed-by: {{ .root.Release.Service }}
  helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end }}

{{/* A Deployment and its budget. More keys: replicas, args; env, mounts, volumes, annotations, and
"port" for a page that other hosts reach. */}}
{{- define "incumbent.deployment" -}}
{{- $values := .root.Values -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  {{- include "incumbent.metadata" . | nindent 2 }}
spec:
  replicas: {{ .replicas }}
  selector:
    matchLabels:
      {{- include "incumbent.labels" . | nindent 6 }}
  strategy:
    # Ready means "could take over", never "leads": only so a rolling update gets past a standby.
    rollingUpdate: {maxUnavailable: 1, maxSurge: 1}
  template:
    metadata:
      labels:
        {{- include "incumbent.labels" . | nindent 8 }}
      {{- with .annotations }}
      annotations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
    spec:
      serviceAccountName: {{ include "incumbent.account" . }}
      automountServiceAccountToken: {{ hasPrefix "kubernetes:" $values.store.url }}
      terminationGracePeriodSeconds: {{ $values.terminationGracePeriodSeconds }}
      # incumbent must be PID 1 of its container, and share it with nothing of another.
      shareProcessNamespace: false
      # A Service named incumbent would put INCUMBENT_PORT and the like into every pod.
      enableServiceLinks: false
      securityContext:
        runAsNonRoot: true
        runAsUser: 65532
        fsGroup: 65532
        seccompProfile: {type: RuntimeDefault}
      topologySpreadConstraints:
        - maxSkew: 1
          topologyKey: kubernetes.io/hostname
          whenUnsatisfiable: ScheduleAnyway
          labelSelector:
            matchLabels:
              {{- include "incumbent.labels" . | nindent 14 }}
      containers:
        - name: incumbent
          image: {{ printf "%s:%s" $values.image.repository ($values.image.tag | default .root.Chart.AppVersion) | quote }}
          imagePullPolicy: {{ $values.image.pullPolicy }}
          args:
            {{- toYaml .args | nindent 12 }}
          env:
            - {name: INCUMBENT_STORE, value: {{ $values.store.url | quote }}}
            {{- if $values.store.passwordSecret }}
            - {name: INCUMBENT_STORE_PASSWORD_FILE, value: /run/incumbent-store/password}
            {{- end }}
            - name: INCUMBENT_HOLDER
              valueFrom: {fieldRef: {fieldPath: metadata.name}}
            - {name: INCUMBENT_TTL, value: {{ $values.ttl | quote }}}
            - {name: INCUMBENT_GRACE, value: {{ $values.grace | quote }}}
            {{- with concat (.env | default list) $values.extraEnv }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
          {{- if .port }}
          ports:
            - {name: http, containerPort: {{ .port }}}
          livenessProbe:
            httpGet: {path: /healthz, port: http}
            periodSeconds: 10
            timeoutSeconds: 3
          readinessProbe:
            httpGet: {path: /readyz, port: http}
            periodSeconds: 5
            timeoutSeconds: 3
          {{- else }}
          livenessProbe:
            exec: {command: [python, /opt/app/probe.py, /healthz]}
            periodSeconds: 10
            timeoutSeconds: 3
          readinessProbe:
            exec: {command: [python, /opt/app/probe.py, /readyz]}
            periodSeconds: 5
            timeoutSeconds: 3
          {{- end }}
          securityContext:
            allowPrivilegeEscalation: false
            readOnlyRootFilesystem: true
            capabilities: {drop: [ALL]}
          resources:
            {{- toYaml $values.resources | nindent 12 }}
          volumeMounts:
            # Commands find a place for their files, though all else is read-only.
            - {name: tmp, mountPath: /tmp}
            {{- if $values.store.passwordSecret }}
            - {name: store-password, mountPath: /run/incumbent-store, readOnly: true}
            {{- end }}
            {{- with .mounts }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
      volumes:
        - name: tmp
          emptyDir: {}
        {{- if $values.store.passwordSecret }}
        - name: store-password
          secret: {secretName: {{ $values.store.passwordSecret }}, defaultMode: 0440}
        {{- end }}
        {{- with .volumes }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
{{- if gt (int .replicas) 1 }}
---
# A drain of nodes takes one replica at a time.
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  {{- include "incumbent.metadata" . | nindent 2 }}
spec:
  maxUnavailable: 1
  selector:
    matchLabels:
      {{- include "incumbent.labels" . | nindent 6 }}
{{- end }}
{{- end }}
