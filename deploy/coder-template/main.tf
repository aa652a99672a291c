# A Coder template whose workspaces are agents of a crewkit fleet.
#
# It cooperates in every way the fleet can use: roles are presets, the spec arrives as the prompt, AgentAPI is an app
# that reports what the agent does, and metadata is served by `crewkit metadata serve`.

terraform {
  required_providers {
    coder = {
      source  = "coder/coder"
      version = ">= 2.13.0"
    }
    docker = {
      source = "kreuzwerker/docker"
    }
  }
}

provider "coder" {}
provider "docker" {}

variable "image" {
  description = "Image of the workspaces; needs git, curl and a shell."
  type        = string
  default     = "codercom/enterprise-base:ubuntu"
}

variable "repository" {
  description = "Git repository the agents work on."
  type        = string
  default     = ""
}

variable "crewkit_url" {
  description = "Where a workspace downloads the crewkit program from; empty when the image has it."
  type        = string
  default     = ""
}

variable "anthropic_api_key" {
  description = "Key of the model; empty when the workspace logs in by itself."
  type        = string
  default     = ""
  sensitive   = true
}

data "coder_provisioner" "me" {}
data "coder_workspace" "me" {}
data "coder_workspace_owner" "me" {}

# The spec. A parameter of this name works on every Coder: until 2.29 the tasks API fills it, from 2.30 on the fleet
# sets it when it creates the workspace.
data "coder_parameter" "ai_prompt" {
  name         = "AI Prompt"
  display_name = "Prompt"
  description  = "What the agent is to do."
  type         = "string"
  form_type    = "textarea"
  default      = ""
  mutable      = true
  order        = 1
}

data "coder_parameter" "system_prompt" {
  name         = "system_prompt"
  display_name = "System prompt"
  description  = "How the agent works; set by its role."
  type         = "string"
  form_type    = "textarea"
  default      = ""
  mutable      = false
  order        = 2
}

# Roles. The fleet shows them in list_agent_roles and takes `coder` when none is named.
data "coder_workspace_preset" "coder" {
  name        = "coder"
  description = "Writes code, implements features, fixes bugs"
  default     = true
  parameters = {
    (data.coder_parameter.system_prompt.name) = "You are a software engineer. Make small commits on a branch of your own, run the tests, and report each step."
  }
}

data "coder_workspace_preset" "operator" {
  name        = "operator"
  description = "Manages deployments, watches systems, handles incidents"
  parameters = {
    (data.coder_parameter.system_prompt.name) = "You are an operations engineer. Look before you change, prefer what can be undone, and report each step."
  }
}

data "coder_workspace_preset" "manager" {
  name        = "manager"
  description = "Coordinates work, reviews specs, checks results"
  parameters = {
    (data.coder_parameter.system_prompt.name) = "You are an engineering manager. Split work, review what others did, and report decisions and open questions."
  }
}

locals {
  home      = "/home/coder"
  workspace = "${local.home}/work"
}

resource "coder_agent" "main" {
  arch = data.coder_provisioner.me.arch
  os   = "linux"
  dir  = local.workspace

  env = {
    ANTHROPIC_API_KEY   = var.anthropic_api_key
    CREWKIT_URL         = var.crewkit_url
    REPOSITORY          = var.repository
    GIT_AUTHOR_NAME     = data.coder_workspace.me.name
    GIT_COMMITTER_NAME  = data.coder_workspace.me.name
    GIT_AUTHOR_EMAIL    = data.coder_workspace_owner.me.email
    GIT_COMMITTER_EMAIL = data.coder_workspace_owner.me.email
  }

  startup_script = file("${path.module}/startup.sh")

  # The second source of metadata, for workspaces without the endpoint: one value, read by Coder itself.
  metadata {
    key          = "fleet_list_git_branch"
    display_name = "Branch"
    script       = "git -C ${local.workspace} branch --show-current"
    interval     = 30
    timeout      = 5
  }
}

# The agent: Claude Code behind AgentAPI, reporting to Coder.
module "claude_code" {
  count         = data.coder_workspace.me.start_count
  source        = "registry.coder.com/coder/claude-code/coder"
  version       = "~> 4.0"
  agent_id      = coder_agent.main.id
  workdir       = local.workspace
  ai_prompt     = data.coder_parameter.ai_prompt.value
  system_prompt = data.coder_parameter.system_prompt.value
  report_tasks  = true
}

# What makes a workspace an agent to Coder itself. Since version 4 the module leaves this to the template.
resource "coder_ai_task" "main" {
  count  = data.coder_workspace.me.start_count
  app_id = module.claude_code[count.index].task_app_id
}

# Metadata: one request of the fleet per workspace.
resource "coder_app" "metadata" {
  agent_id     = coder_agent.main.id
  slug         = "fleet-mcp"
  display_name = "Metadata"
  url          = "http://127.0.0.1:8000"
  share        = "owner"
  subdomain    = false
  hidden       = true

  healthcheck {
    url       = "http://127.0.0.1:8000/health"
    interval  = 10
    threshold = 6
  }
}

resource "docker_volume" "home" {
  name = "coder-${data.coder_workspace.me.id}-home"
  lifecycle {
    ignore_changes = all
  }
}

resource "docker_container" "workspace" {
  count      = data.coder_workspace.me.start_count
  image      = var.image
  name       = "coder-${data.coder_workspace_owner.me.name}-${lower(data.coder_workspace.me.name)}"
  hostname   = data.coder_workspace.me.name
  entrypoint = ["sh", "-c", replace(coder_agent.main.init_script, "/localhost|127\\.0\\.0\\.1/", "host.docker.internal")]
  env        = ["CODER_AGENT_TOKEN=${coder_agent.main.token}"]

  host {
    host = "host.docker.internal"
    ip   = "host-gateway"
  }

  volumes {
    container_path = local.home
    volume_name    = docker_volume.home.name
  }
}
