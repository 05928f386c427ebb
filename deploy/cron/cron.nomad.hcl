# Three allocations of a cron fleet on three clients.
#   nomad job run deploy/cron/cron.nomad.hcl
# Not run: neither Nomad nor Consul was at hand. Checked: the HCL parses (python-hcl2), and a unit
# test of names and times.
variable "image" {
  type    = string
  default = "registry.example/incumbent-cron:0.1.0"
}

variable "store" {
  type    = string
  default = "redis://redis.service.consul:6379"
}

job "jobs" {
  type = "service"

  group "cron" {
    count = 3

    constraint {
      distinct_hosts = true
    }

    update {
      max_parallel     = 1
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
      name     = "jobs"
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
      # More than drain (25 s) + grace (5 s) + one request for the release (1 s).
      kill_timeout = "45s"
      kill_signal  = "SIGTERM"

      config {
        image = var.image
        args  = ["cron", "/local/jobs.toml"]
        # incumbent is PID 1 itself; see the Dockerfile.
        init = false
      }

      template {
        destination   = "local/jobs.toml"
        change_mode   = "signal"
        change_signal = "SIGHUP"
        data          = <<-JOBS
          [[job]]
          name = "sync"
          schedule = "*/15 * * * *"
          command = ["python", "-c", "print('sync')"]
          at_most_for = "10m"
        JOBS
      }

      env {
        INCUMBENT_STORE  = "${var.store}"
        INCUMBENT_HOLDER = "${NOMAD_ALLOC_ID}"
        INCUMBENT_TTL    = "15s"
        INCUMBENT_GRACE  = "5s"
        INCUMBENT_DRAIN  = "25s"
      }

      resources {
        cpu    = 100
        memory = 256
      }
    }
  }
}
