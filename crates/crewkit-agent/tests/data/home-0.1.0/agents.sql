BEGIN TRANSACTION;
CREATE TABLE chats (
    conversation TEXT NOT NULL,
    seq          INTEGER NOT NULL,
    at           INTEGER NOT NULL,
    body         TEXT NOT NULL,
    PRIMARY KEY (conversation, seq)
) WITHOUT ROWID;
INSERT INTO "chats" VALUES('talk-1',1,1794895243884,'{"role":"user","content":"hello there"}');
INSERT INTO "chats" VALUES('talk-1',2,1794895243905,'{"role":"assistant","content":"[rehearsal] A reply in words to: hello there","calls":[]}');
CREATE TABLE events (
    run  TEXT NOT NULL,
    seq  INTEGER NOT NULL,
    at   INTEGER NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (run, seq)
) WITHOUT ROWID;
INSERT INTO "events" VALUES('agent-01a1e817ce157172b9cda44c3af65de6',1,1794895236629,'{"type":"status","status":"running"}');
INSERT INTO "events" VALUES('agent-01a1e817ce157172b9cda44c3af65de6',2,1794895236630,'{"type":"note","content":"This is a rehearsal: no model is configured or asked, and nothing is changed."}');
INSERT INTO "events" VALUES('agent-01a1e817ce157172b9cda44c3af65de6',3,1794895236630,'{"type":"assistant","content":"[rehearsal] I am done and deliver a report.","tool_calls":[{"id":"rehearsal_agent_complete","name":"agent_complete","arguments":"{\"summary\":\"Rehearsal only, no model was asked and nothing was changed. Contract: Say hello\",\"payload\":\"# Rehearsal report\\n\\nNo model was asked. This is what a run looks like.\\n\\n## Contract\\n\\nSay hello\\n\"}"}],"usage":{"input_tokens":0,"output_tokens":8}}');
INSERT INTO "events" VALUES('agent-01a1e817ce157172b9cda44c3af65de6',4,1794895236637,'{"type":"tool_result","call_id":"rehearsal_agent_complete","name":"agent_complete","content":"The contract is complete.","is_error":false}');
INSERT INTO "events" VALUES('agent-01a1e817ce157172b9cda44c3af65de6',5,1794895236648,'{"type":"status","status":"completed"}');
INSERT INTO "events" VALUES('agent-01a1e817ce6d768896e6dd8a41b270c6',1,1794895236717,'{"type":"status","status":"running"}');
INSERT INTO "events" VALUES('agent-01a1e817ce6d768896e6dd8a41b270c6',2,1794895237505,'{"type":"status","status":"stopped","reason":"requested"}');
INSERT INTO "events" VALUES('agent-01a1e817d20b7193bffa2c61d5bef410',1,1794895237659,'{"type":"status","status":"running"}');
INSERT INTO "events" VALUES('agent-01a1e817d20b7193bffa2c61d5bef410',2,1794895238550,'{"type":"status","status":"completed"}');
INSERT INTO "events" VALUES('agent-01a1e817d6d47031be4ae89edf2adca3',1,1794895238871,'{"type":"status","status":"running"}');
INSERT INTO "events" VALUES('agent-01a1e817d6d47031be4ae89edf2adca3',2,1794895239005,'{"type":"assistant","content":"working"}');
CREATE TABLE payload_chunks (
    upload TEXT NOT NULL,
    n      INTEGER NOT NULL,
    data   BLOB NOT NULL,
    UNIQUE (upload, n)
);
INSERT INTO "payload_chunks" VALUES('01a1e817ce1e73c6a2d29a102cedf34c',0,X'1F8B08000000000000FF0DCC310A80300C05D03DA7F8D0DD4BB83BA817081AA8343692548AB7B7F0E697B04A16F66085CB63DE8816C36DA7283A07388A9C13F67C05869EB981E16F859A95805E4526A294305B6DCEC70836FE9045D5E80758CB917F5F000000');
INSERT INTO "payload_chunks" VALUES('01a1e817d56f747dbf71d596fb177b4e',0,X'1F8B08000000000000FF2BC9485528CF2FCAD6514849CDC92C4B2D4A4D0100CFA0C4A913000000');
CREATE TABLE runs (
    id             TEXT PRIMARY KEY,
    contract       TEXT NOT NULL,
    spec           TEXT NOT NULL,
    created_at     INTEGER NOT NULL,
    idempotency    TEXT UNIQUE,
    status         TEXT NOT NULL,
    started_at     INTEGER,
    ended_at       INTEGER,
    stop_reason    TEXT,
    attempt        INTEGER NOT NULL,
    summary        TEXT,
    error          TEXT,
    payload_upload TEXT,
    payload_size   INTEGER,
    payload_gzip   INTEGER,
    payload_etag   TEXT,
    turns          INTEGER NOT NULL,
    input_tokens   INTEGER NOT NULL,
    output_tokens  INTEGER NOT NULL,
    last_seq       INTEGER NOT NULL
) WITHOUT ROWID;
INSERT INTO "runs" VALUES('agent-01a1e817ce157172b9cda44c3af65de6','Say hello','{}',1794895236629,'first','completed',1794895236629,1794895236648,NULL,1,'Rehearsal only, no model was asked and nothing was changed. Contract: Say hello',NULL,'01a1e817ce1e73c6a2d29a102cedf34c',95,102,'61636afb09ebba60e7a4a82345040605',1,0,8,5);
INSERT INTO "runs" VALUES('agent-01a1e817ce6d768896e6dd8a41b270c6','sleep 600','{"driver":"shell"}',1794895236717,NULL,'stopped',1794895236717,1794895237505,'requested',1,NULL,NULL,NULL,NULL,NULL,NULL,0,0,0,2);
INSERT INTO "runs" VALUES('agent-01a1e817d20b7193bffa2c61d5bef410','sleep 601','{"driver":"shell"}',1794895237659,NULL,'completed',1794895237659,1794895238550,NULL,1,'all is well',NULL,'01a1e817d56f747dbf71d596fb177b4e',19,39,'29d31b4e16692f6fd7a3f8d1a7108471',0,0,0,2);
INSERT INTO "runs" VALUES('agent-01a1e817d674722c967c2fac9d90be2c','prepared','{}',1794895238772,NULL,'ready',NULL,NULL,NULL,1,NULL,NULL,NULL,NULL,NULL,NULL,0,0,0,0);
INSERT INTO "runs" VALUES('agent-01a1e817d6d47031be4ae89edf2adca3','echo working; sleep 602','{"driver":"shell"}',1794895238871,NULL,'running',1794895238871,NULL,NULL,1,NULL,NULL,NULL,NULL,NULL,NULL,1,0,0,2);
COMMIT;
PRAGMA user_version = 1;
