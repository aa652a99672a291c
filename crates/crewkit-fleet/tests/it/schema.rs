//! The shape of every fleet tool's answer, as JSON Schema text in the key order of the contracts.
//!
//! The schemas are closed: a field that is not written down here does not leave the fleet.

/// The JSON Schema of one tool's answer.
pub(crate) struct ToolSchema {
    /// Name of the tool.
    pub(crate) tool: &'static str,
    /// Its answer when it succeeds.
    pub(crate) output: &'static str,
}

macro_rules! moment {
    () => {
        r#"{"type":"string","pattern":"^\\d{4}-\\d{2}-\\d{2}T\\d{2}:\\d{2}:\\d{2}Z$"}"#
    };
}

macro_rules! moment_or_null {
    () => {
        r#"{"type":["string","null"],"pattern":"^\\d{4}-\\d{2}-\\d{2}T\\d{2}:\\d{2}:\\d{2}Z$"}"#
    };
}

macro_rules! availability {
    () => {
        r#"{"enum":["busy","idle","offline"]}"#
    };
}

macro_rules! git {
    () => {
        concat!(
            r#"{"type":["object","null"],"properties":{"branch":{"type":["string","null"]},"#,
            r#""sha":{"type":["string","null"]},"dirty":{"type":["boolean","null"]}},"#,
            r#""required":["branch","sha","dirty"],"additionalProperties":false}"#
        )
    };
}

macro_rules! agent {
    () => {
        concat!(
            r#"{"type":"object","properties":{"name":{"type":"string"},"workspace_id":{"type":"string"},"#,
            r#""status":{"type":"string"},"role":{"type":"string"},"project":{"type":"string"},"#,
            r#""spec":{"type":"string"},"current_task":{"type":["string","null"]},"#,
            r#""last_task":{"type":["string","null"]},"created_at":"#,
            moment!(),
            r#","updated_at":"#,
            moment!(),
            r#","metadata_count":{"type":"integer","minimum":0},"metadata":{"type":"object"},"metadata_at":"#,
            moment_or_null!(),
            r#","fleet_metadata":{"type":"object","additionalProperties":{"type":"string"}},"git":"#,
            git!(),
            r#","online":{"type":"boolean"},"availability":"#,
            availability!(),
            r#","needs_attention":{"type":"boolean"},"health":{"type":"object","properties":"#,
            r#"{"healthy":{"type":"boolean"},"reason":{"type":["string","null"]}},"#,
            r#""required":["healthy","reason"],"additionalProperties":false},"owner":{"type":"string"},"#,
            r#""organization":{"type":"string"},"url":{"type":["string","null"]},"#,
            r#""kit":{"type":["object","null"],"properties":{"profile":{"type":["string","null"]},"#,
            r#""snapshot_id":{"type":["string","null"]},"drift_count":{"type":["integer","null"]},"#,
            r#""error":{"type":"string"}},"#,
            r#""required":["profile","snapshot_id","drift_count"],"additionalProperties":false}},"#,
            r#""required":["name","workspace_id","status","role","project","spec","current_task","last_task","#,
            r#""created_at","updated_at","metadata_count","metadata","metadata_at","fleet_metadata","git","online","availability","#,
            r#""needs_attention","health","owner","organization","url","kit"],"additionalProperties":false}"#
        )
    };
}

macro_rules! summary {
    () => {
        concat!(
            r#"{"type":"object","properties":{"name":{"type":"string"},"status":{"type":"string"},"#,
            r#""role":{"type":"string"},"project":{"type":"string"},"current_task":{"type":["string","null"]},"#,
            r#""last_task":{"type":["string","null"]},"created_at":"#,
            moment!(),
            r#","updated_at":"#,
            moment!(),
            r#","metadata_count":{"type":"integer","minimum":0},"metadata":{"type":"object"},"metadata_at":"#,
            moment_or_null!(),
            r#","fleet_metadata":{"type":"object","additionalProperties":{"type":"string"}},"git":"#,
            git!(),
            r#","online":{"type":"boolean"},"availability":"#,
            availability!(),
            r#","needs_attention":{"type":"boolean"}},"#,
            r#""required":["name","status","role","project","current_task","last_task","created_at","updated_at","#,
            r#""metadata_count","metadata","metadata_at","fleet_metadata","git","online","availability","needs_attention"],"#,
            r#""additionalProperties":false}"#
        )
    };
}

macro_rules! task {
    () => {
        concat!(
            r#"{"type":"object","properties":{"id":{"type":"string"},"agent_name":{"type":"string"},"#,
            r#""summary":{"type":"string"},"#,
            r#""status":{"enum":["pending","running","completed","failed","stopped"]},"#,
            r#""source":{"enum":["agent","human","ai_controller"]},"created_at":"#,
            moment!(),
            r#","started_at":"#,
            moment_or_null!(),
            r#","completed_at":"#,
            moment_or_null!(),
            r#","message":{"type":"string"},"uri":{"type":"string"},"needs_user_attention":{"type":"boolean"},"#,
            r#""state":{"type":"string"},"phase":{"enum":["queued","working"]}},"#,
            r#""required":["id","agent_name","summary","status","source","created_at","#,
            r#""started_at","completed_at","message","uri","needs_user_attention","state"],"#,
            r#""additionalProperties":false}"#
        )
    };
}

macro_rules! pages {
    () => {
        concat!(
            r#""total_count":{"type":"integer","minimum":0},"page":{"type":"integer","minimum":1},"#,
            r#""page_size":{"type":"integer","minimum":1,"maximum":100},"total_pages":{"type":"integer","minimum":0},"#,
            r#""agent_name":{"type":"string"},"has_next_page":{"type":"boolean"},"has_previous_page":{"type":"boolean"}"#
        )
    };
}

macro_rules! stopped {
    () => {
        concat!(
            r#"{"type":"object","properties":{"task":"#,
            task!(),
            r#","agent_status":{"type":"string"},"message":{"type":"string"},"agent_name":{"type":"string"},"#,
            r#""details":{"type":"object","properties":{"confirmed":{"type":"boolean"}},"required":["confirmed"],"#,
            r#""additionalProperties":false}},"#,
            r#""required":["task","agent_status","message","agent_name","details"],"additionalProperties":false}"#
        )
    };
}

/// Every tool, in the order the doors list them.
pub(crate) const TOOLS: &[ToolSchema] = &[
    ToolSchema {
        tool: "create_agent",
        output: concat!(
            r#"{"type":"object","properties":{"agent":"#,
            agent!(),
            r#","message":{"type":"string"}},"required":["agent","message"],"additionalProperties":false}"#
        ),
    },
    ToolSchema {
        tool: "list_agents",
        output: concat!(
            r#"{"type":"object","properties":{"agents":{"type":"array","items":"#,
            summary!(),
            r#"},"total_count":{"type":"integer","minimum":0}},"required":["agents","total_count"],"additionalProperties":false}"#
        ),
    },
    ToolSchema {
        tool: "show_agent",
        output: concat!(
            r#"{"type":"object","properties":{"agent":"#,
            agent!(),
            r#"},"required":["agent"],"additionalProperties":false}"#
        ),
    },
    ToolSchema {
        tool: "show_agent_task_history",
        output: concat!(
            r#"{"type":"object","properties":{"tasks":{"type":"array","items":"#,
            task!(),
            r#"},"#,
            pages!(),
            r#","details":{"type":"object","properties":{"scope":{"enum":["all","current_build"]},"raw":{"type":"boolean"},"missing":{"type":"string"}},"#,
            r#""required":["scope","raw"],"additionalProperties":false}},"#,
            r#""required":["tasks","total_count","page","page_size","total_pages","agent_name","has_next_page","#,
            r#""has_previous_page","details"],"additionalProperties":false}"#
        ),
    },
    ToolSchema {
        tool: "delete_agent",
        output: r#"{"type":"object","properties":{"message":{"type":"string"},"deleted_agent":{"type":"object","properties":{"name":{"type":"string"},"workspace_id":{"type":"string"}},"required":["name","workspace_id"],"additionalProperties":false},"agent_name":{"type":"string"},"status":{"type":"string"}},"required":["message","deleted_agent","agent_name","status"],"additionalProperties":false}"#,
    },
    ToolSchema {
        tool: "start_agent_task",
        output: concat!(
            r#"{"type":"object","properties":{"task":"#,
            task!(),
            r#","agent_status":{"type":"string"},"message":{"type":"string"},"agent_name":{"type":"string"},"#,
            r#""task_description":{"type":"string"}},"#,
            r#""required":["task","agent_status","message","agent_name","task_description"],"additionalProperties":false}"#
        ),
    },
    ToolSchema { tool: "stop_agent_task", output: stopped!() },
    ToolSchema { tool: "cancel_agent_task", output: stopped!() },
    ToolSchema {
        tool: "list_agent_roles",
        output: r#"{"type":"object","properties":{"roles":{"type":"array","items":{"type":"object","properties":{"name":{"type":"string"},"display_name":{"type":"string"},"description":{"type":"string"},"template_id":{"type":"string"},"id":{"type":"string"},"project_id":{"type":"string"},"project_name":{"type":"string"},"default":{"type":"boolean"}},"required":["name","display_name","description","template_id","id","project_id","project_name","default"],"additionalProperties":false}},"project_name":{"type":"string"},"total_count":{"type":"integer","minimum":0}},"required":["roles","project_name","total_count"],"additionalProperties":false}"#,
    },
    ToolSchema {
        tool: "list_agent_projects",
        output: r#"{"type":"object","properties":{"projects":{"type":"array","items":{"type":"object","properties":{"name":{"type":"string"},"display_name":{"type":"string"},"description":{"type":"string"},"template_id":{"type":"string"},"template_name":{"type":"string"},"id":{"type":"string"},"organization":{"type":"string"},"active_version_id":{"type":"string"}},"required":["name","display_name","description","template_id","template_name","id","organization","active_version_id"],"additionalProperties":false}},"total_count":{"type":"integer","minimum":0}},"required":["projects","total_count"],"additionalProperties":false}"#,
    },
    ToolSchema {
        tool: "restart_agent",
        output: r#"{"type":"object","properties":{"agent_name":{"type":"string"},"status":{"type":"string"},"message":{"type":"string"}},"required":["agent_name","status","message"],"additionalProperties":false}"#,
    },
    ToolSchema {
        tool: "show_agent_log",
        output: concat!(
            r#"{"type":"object","properties":{"logs":{"type":"array","items":{"type":"object","properties":"#,
            r#"{"id":{"type":"integer"},"type":{"enum":["input","output"]},"content":{"type":"string"},"time":"#,
            moment_or_null!(),
            r#","truncated":{"type":"boolean"}},"required":["id","type","content","time","truncated"],"#,
            r#""additionalProperties":false}},"#,
            pages!(),
            r#"},"required":["logs","total_count","page","page_size","total_pages","agent_name","has_next_page","#,
            r#""has_previous_page"],"additionalProperties":false}"#
        ),
    },
    ToolSchema {
        tool: "wait_for_agent",
        output: r#"{"type":"object","properties":{"agent_name":{"type":"string"},"status":{"type":"string"},"reached":{"type":"boolean"},"last_task":{"type":["string","null"]},"needs_attention":{"type":"boolean"},"waited_seconds":{"type":"integer","minimum":0},"message":{"type":"string"}},"required":["agent_name","status","reached","last_task","needs_attention","waited_seconds","message"],"additionalProperties":false}"#,
    },
];

/// The schemas of `tool`.
pub(crate) fn of(tool: &str) -> Option<&'static ToolSchema> {
    TOOLS.iter().find(|schema| schema.tool == tool)
}
