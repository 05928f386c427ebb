# Three allocations of the Telnet leader on three clients.
#   nomad job run deploy/nomad/telnet.nomad.hcl
# Not run: neither Nomad nor Consul was at hand. Checked: the HCL parses (python-hcl2), and a unit
# test of names and times.
variable "image" {
  type    = string
  default = "registry.example/incumbent-telnet:0.1.0"
}

variable "store" {
  type    = string
  default = "redis://redis.service.consul:6379"
}

job "telnet" {
  type = "service"

  group "leader" {
    count = 3

    constraint {
      distinct_hosts = true
    }

    update {
      max_parallel = 1
      # Checks say "ready to take over", never "leads": an update that waits for it gets done.
      health_check     = "checks"
      min_healthy_time = "5s"
      auto_revert      = true
    }

    restart {
      attempts = 10
      interval = "5m"
      delay    = "2s"
      mode     = "delay"
    }

    service {
      name     = "telnet"
      provider = "consul"

      check {
        type     = "script"
        task     = "incumbent"
        command  = "python"
        args     = ["/opt/app/probe.py", "/readyz"]
        interval = "5s"
        timeout  = "3s"
      }
    }

    task "incumbent" {
      driver = "docker"
      # More than grace (5 s) + one request for the release (1 s).
      kill_timeout = "20s"
      kill_signal  = "SIGTERM"

      config {
        image = var.image
        # incumbent is PID 1 itself; see the Dockerfile.
        init = false
      }

      env {
        INCUMBENT_STORE  = "${var.store}"
        INCUMBENT_HOLDER = "${NOMAD_ALLOC_ID}"
        INCUMBENT_TTL    = "15s"
        INCUMBENT_GRACE  = "5s"
        TELNET_HOST      = "switch-7"
        TELNET_PORT      = "23"
      }

      resources {
        cpu    = 50
        memory = 128
      }
    }
  }
}
