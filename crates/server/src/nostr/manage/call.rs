//! The calls of the relay management API (NIP-86), read from the JSON of a request.

use hark_codec::hex;
use serde_json::Value;

use super::method::ManageMethod;
use crate::moderation::{Ruling, RulingSubject, SubjectSort};
use crate::ranges;

/// Maximum length of a reason or a description, in characters.
const TEXT_CHARS_MAX: usize = 4_000;
/// Maximum length of a name, or of the id or the label of a role, in characters.
const NAME_CHARS_MAX: usize = 200;
/// Maximum length of the URL of an icon, in characters.
const URL_CHARS_MAX: usize = 2_000;

/// A method with its parameters.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ManageCall {
    SupportedMethods,
    /// Bans or allows a subject, and lifts the contrary ruling.
    Rule(NewRuling),
    /// Lifts a ban or a permission.
    Lift(RulingSubject, Ruling),
    /// Lists the banned or the allowed subjects of one sort.
    List(SubjectSort, Ruling),
    EventsNeedingModeration,
    /// Changes the description of the relay. `None` restores the configured value.
    ChangeInfo(InfoField, Option<String>),
    /// Defines a new role, or changes the definition of an existing role.
    DefineRole {
        role: RoleDefinition,
        is_new: bool,
    },
    /// Deletes a role.
    DeleteRole(String),
    /// Gives a role to a key, or withdraws the role.
    AssignRole {
        key: [u8; 32],
        role: String,
        is_given: bool,
    },
}

/// A ban or an allow that a manager makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NewRuling {
    pub(super) subject: RulingSubject,
    pub(super) ruling: Ruling,
    pub(super) reason: String,
    /// When the ruling ends, in seconds since 1970. `None`: never. NIP-86 has no such parameter.
    pub(super) until_s: Option<u64>,
}

/// A part of the relay's description that managers may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InfoField {
    Name,
    Description,
    Icon,
}

/// The definition of a role (NIP-43), which clients show.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RoleDefinition {
    pub(crate) id: String,
    pub(crate) label: String,
    pub(crate) description: String,
    /// The hue, from 0 to 360.
    pub(crate) color: Option<u16>,
    pub(crate) order: Option<i64>,
}

/// Why a request is not a valid call.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum CallFault {
    #[error("the body is not a JSON object with \"method\" and \"params\": {0}")]
    Json(String),
    #[error("this relay has no method {0:?}; supportedmethods lists the methods")]
    Method(String),
    #[error("{}: {fault}", .method.text())]
    Params { method: ManageMethod, fault: ParamFault },
}

/// Why a parameter is wrong.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ParamFault {
    #[error("parameter {0} is missing")]
    Missing(usize),
    #[error("parameter {0} must be {1}")]
    Wrong(usize, &'static str),
    #[error("parameter {0} has more than {1} characters")]
    Long(usize, usize),
}

/// A request: the method, and the parameters, which are not checked yet.
#[derive(Debug)]
pub(super) struct ManageRequest {
    pub(super) method: ManageMethod,
    params: Vec<Value>,
}

impl ManageRequest {
    /// A request with these parameters.
    pub(super) fn new(method: ManageMethod, params: Vec<Value>) -> Self {
        Self { method, params }
    }

    /// Reads the body of a request.
    pub(super) fn parse(body: &[u8]) -> Result<Self, CallFault> {
        #[derive(serde::Deserialize)]
        struct CallForm {
            method: String,
            #[serde(default)]
            params: Option<Vec<Value>>,
        }
        let form: CallForm =
            serde_json::from_slice(body).map_err(|fault| CallFault::Json(fault.to_string()))?;
        let params = form.params.unwrap_or_default();
        let method = ManageMethod::from_name(&form.method)
            .ok_or_else(|| CallFault::Method(form.method.chars().take(NAME_CHARS_MAX).collect()))?;
        Ok(Self { method, params })
    }

    /// Checks the parameters.
    pub(super) fn call(&self) -> Result<ManageCall, CallFault> {
        let params = ManageParams(&self.params);
        let method = self.method;
        params.call(method).map_err(|fault| CallFault::Params { method, fault })
    }
}

/// The parameters of a call.
struct ManageParams<'a>(&'a [Value]);

impl ManageParams<'_> {
    fn call(&self, method: ManageMethod) -> Result<ManageCall, ParamFault> {
        use ManageMethod as M;
        let rule = |subject, ruling, reason| {
            ManageCall::Rule(NewRuling { subject, ruling, reason, until_s: None })
        };
        Ok(match method {
            M::SupportedMethods => ManageCall::SupportedMethods,
            M::BanPubkey => rule(self.key(0)?, Ruling::Ban, self.reason(1)?),
            M::AllowPubkey => rule(self.key(0)?, Ruling::Allow, self.reason(1)?),
            M::UnbanPubkey => ManageCall::Lift(self.key(0)?, Ruling::Ban),
            M::UnallowPubkey => ManageCall::Lift(self.key(0)?, Ruling::Allow),
            M::ListBannedPubkeys => ManageCall::List(SubjectSort::Key, Ruling::Ban),
            M::ListAllowedPubkeys => ManageCall::List(SubjectSort::Key, Ruling::Allow),
            M::BanEvent => rule(self.event(0)?, Ruling::Ban, self.reason(1)?),
            M::AllowEvent => rule(self.event(0)?, Ruling::Allow, self.reason(1)?),
            M::ListBannedEvents => ManageCall::List(SubjectSort::Id, Ruling::Ban),
            M::ListEventsNeedingModeration => ManageCall::EventsNeedingModeration,
            M::AllowKind => rule(self.kind(0)?, Ruling::Allow, String::new()),
            M::DisallowKind => rule(self.kind(0)?, Ruling::Ban, String::new()),
            M::ListAllowedKinds => ManageCall::List(SubjectSort::Kind, Ruling::Allow),
            M::BlockIp => rule(self.addresses(0)?, Ruling::Ban, self.reason(1)?),
            M::UnblockIp => ManageCall::Lift(self.addresses(0)?, Ruling::Ban),
            M::ListBlockedIps => ManageCall::List(SubjectSort::Addresses, Ruling::Ban),
            M::ChangeRelayName => self.info(InfoField::Name, NAME_CHARS_MAX)?,
            M::ChangeRelayDescription => self.info(InfoField::Description, TEXT_CHARS_MAX)?,
            M::ChangeRelayIcon => self.info(InfoField::Icon, URL_CHARS_MAX)?,
            M::CreateRole => ManageCall::DefineRole { role: self.role()?, is_new: true },
            M::EditRole => ManageCall::DefineRole { role: self.role()?, is_new: false },
            M::DeleteRole => ManageCall::DeleteRole(self.role_id(0)?),
            M::AssignRole => self.assignment(true)?,
            M::UnassignRole => self.assignment(false)?,
        })
    }

    /// The parameter with this index. `None` if it is missing or null.
    fn get(&self, at: usize) -> Option<&Value> {
        self.0.get(at).filter(|value| !value.is_null())
    }

    fn text(&self, at: usize, chars_max: usize) -> Result<Option<&str>, ParamFault> {
        let Some(value) = self.get(at) else { return Ok(None) };
        let text = value.as_str().ok_or(ParamFault::Wrong(at + 1, "a string"))?;
        if text.chars().count() > chars_max {
            return Err(ParamFault::Long(at + 1, chars_max));
        }
        Ok(Some(text.trim()))
    }

    fn required(&self, at: usize, chars_max: usize) -> Result<&str, ParamFault> {
        self.text(at, chars_max)?.ok_or(ParamFault::Missing(at + 1))
    }

    fn reason(&self, at: usize) -> Result<String, ParamFault> {
        Ok(self.text(at, TEXT_CHARS_MAX)?.unwrap_or_default().to_owned())
    }

    /// 32 bytes in hex.
    fn bytes(&self, at: usize, what: &'static str) -> Result<[u8; 32], ParamFault> {
        let text = self.required(at, NAME_CHARS_MAX)?.to_ascii_lowercase();
        hex::decode_32(text.as_bytes()).ok_or(ParamFault::Wrong(at + 1, what))
    }

    fn key(&self, at: usize) -> Result<RulingSubject, ParamFault> {
        self.bytes(at, "a public key of 64 hex digits").map(RulingSubject::Key)
    }

    fn event(&self, at: usize) -> Result<RulingSubject, ParamFault> {
        self.bytes(at, "the id of an event, of 64 hex digits").map(RulingSubject::Id)
    }

    fn kind(&self, at: usize) -> Result<RulingSubject, ParamFault> {
        let kind = self.get(at).ok_or(ParamFault::Missing(at + 1))?.as_u64();
        let kind = kind.and_then(|kind| u16::try_from(kind).ok());
        kind.map(RulingSubject::Kind).ok_or(ParamFault::Wrong(at + 1, "a number from 0 to 65535"))
    }

    fn addresses(&self, at: usize) -> Result<RulingSubject, ParamFault> {
        let text = self.required(at, NAME_CHARS_MAX)?;
        let what = "an IP address, or a network like 192.0.2.0/24";
        let range = ranges::read(text).map_err(|_| ParamFault::Wrong(at + 1, what))?;
        Ok(RulingSubject::addresses(range))
    }

    fn info(&self, field: InfoField, chars_max: usize) -> Result<ManageCall, ParamFault> {
        let text = self.required(0, chars_max)?;
        let is_link = ["https://", "http://"].iter().any(|scheme| {
            text.strip_prefix(scheme).is_some_and(|rest| {
                let is_open = |letter: char| letter.is_whitespace() || letter.is_control();
                !rest.is_empty() && !rest.starts_with('/') && !rest.contains(is_open)
            })
        });
        if field == InfoField::Icon && !text.is_empty() && !is_link {
            return Err(ParamFault::Wrong(1, "a URL with https:// or http://"));
        }
        let text = (!text.is_empty()).then(|| text.to_owned());
        Ok(ManageCall::ChangeInfo(field, text))
    }

    fn role_id(&self, at: usize) -> Result<String, ParamFault> {
        let id = self.required(at, NAME_CHARS_MAX)?;
        if id.is_empty() || id.contains(char::is_control) {
            return Err(ParamFault::Wrong(at + 1, "the id of a role"));
        }
        Ok(id.to_owned())
    }

    fn role(&self) -> Result<RoleDefinition, ParamFault> {
        let color = match self.number(3)? {
            None => None,
            Some(hue) => {
                let hue = u16::try_from(hue).ok().filter(|hue| *hue <= 360);
                Some(hue.ok_or(ParamFault::Wrong(4, "a hue from 0 to 360"))?)
            }
        };
        Ok(RoleDefinition {
            id: self.role_id(0)?,
            label: self.text(1, NAME_CHARS_MAX)?.unwrap_or_default().to_owned(),
            description: self.text(2, TEXT_CHARS_MAX)?.unwrap_or_default().to_owned(),
            color,
            order: self.number(4)?,
        })
    }

    /// A whole number. Clients may also send a string of its digits, because NIP-43 writes numbers
    /// in tags.
    fn number(&self, at: usize) -> Result<Option<i64>, ParamFault> {
        let Some(value) = self.get(at) else { return Ok(None) };
        let number = match value.as_str() {
            Some("") => return Ok(None),
            Some(digits) => digits.parse().ok(),
            None => value.as_i64(),
        };
        number.map(Some).ok_or(ParamFault::Wrong(at + 1, "a whole number"))
    }

    fn assignment(&self, is_given: bool) -> Result<ManageCall, ParamFault> {
        let key = self.bytes(0, "a public key of 64 hex digits")?;
        Ok(ManageCall::AssignRole { key, role: self.role_id(1)?, is_given })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(body: &str) -> Result<ManageCall, CallFault> {
        ManageRequest::parse(body.as_bytes())?.call()
    }

    fn rule(subject: RulingSubject, ruling: Ruling, reason: &str) -> ManageCall {
        ManageCall::Rule(NewRuling { subject, ruling, reason: reason.into(), until_s: None })
    }

    #[test]
    fn a_call_is_read_as_the_nip_writes_it() {
        let hex = "ab".repeat(32);
        let key = || RulingSubject::Key([0xab; 32]);
        let of = |method: &str, params: &str| {
            call(&format!(r#"{{"method":"{method}","params":{params}}}"#)).unwrap()
        };
        assert_eq!(of("supportedmethods", "[]"), ManageCall::SupportedMethods);
        assert_eq!(call(r#"{"method":"supportedmethods"}"#), Ok(ManageCall::SupportedMethods));
        let banned = rule(key(), Ruling::Ban, "spam");
        assert_eq!(of("banpubkey", &format!(r#"["{hex}","spam"]"#)), banned);
        let upper = hex.to_ascii_uppercase();
        let allowed = || rule(key(), Ruling::Allow, "");
        assert_eq!(of("allowpubkey", &format!(r#"["{upper}"]"#)), allowed());
        assert_eq!(of("allowpubkey", &format!(r#"["{hex}",null]"#)), allowed());
        assert_eq!(
            of("unbanpubkey", &format!(r#"["{hex}"]"#)),
            ManageCall::Lift(key(), Ruling::Ban)
        );
        let kind = rule(RulingSubject::Kind(1984), Ruling::Ban, "");
        assert_eq!(of("disallowkind", "[1984]"), kind);
        let range = |text: &str| RulingSubject::addresses(ranges::read(text).unwrap());
        for (ip, read) in [
            ("192.0.2.7", "192.0.2.7"),
            ("::ffff:192.0.2.7", "192.0.2.7"),
            ("2001:db8::/32", "2001:db8::/32"),
        ] {
            let unblocked = ManageCall::Lift(range(read), Ruling::Ban);
            assert_eq!(of("unblockip", &format!(r#"["{ip}"]"#)), unblocked);
        }
        let name = ManageCall::ChangeInfo(InfoField::Name, Some("Relay".into()));
        assert_eq!(of("changerelayname", r#"["Relay"]"#), name);
        assert_eq!(of("changerelayicon", r#"[""]"#), ManageCall::ChangeInfo(InfoField::Icon, None));
        let role = RoleDefinition {
            id: "28b7e50f".into(),
            label: "king".into(),
            description: "ruler".into(),
            color: Some(37),
            order: Some(1),
        };
        for params in
            [r#"["28b7e50f","king","ruler",37,1]"#, r#"["28b7e50f","king","ruler","37","1"]"#]
        {
            let defined = ManageCall::DefineRole { role: role.clone(), is_new: true };
            assert_eq!(of("createrole", params), defined);
        }
        let assigned =
            ManageCall::AssignRole { key: [0xab; 32], role: "king".into(), is_given: true };
        assert_eq!(of("assignrole", &format!(r#"["{hex}","king"]"#)), assigned);
    }

    #[test]
    fn a_call_that_is_wrong_is_refused_with_the_parameter() {
        for body in ["", "[]", "{}", r#"{"method":1}"#, r#"{"method":"banevent","params":{}}"#] {
            assert!(matches!(call(body), Err(CallFault::Json(_))), "{body}");
        }
        let unknown = call(r#"{"method":"signevent","params":[]}"#);
        assert_eq!(unknown, Err(CallFault::Method("signevent".into())));
        for (method, params, words) in [
            ("banpubkey", "[]", "banpubkey: parameter 1 is missing"),
            ("banpubkey", r#"["npub1"]"#, "a public key of 64 hex digits"),
            ("banevent", "[7]", "banevent: parameter 1 must be a string"),
            ("allowkind", r#"["1"]"#, "a number from 0 to 65535"),
            ("allowkind", "[65536]", "a number from 0 to 65535"),
            ("allowkind", "[-1]", "a number from 0 to 65535"),
            ("blockip", r#"["192.0.2.0/8"]"#, "an IP address"),
            ("blockip", r#"["relay.example"]"#, "an IP address"),
            ("changerelayname", "[]", "parameter 1 is missing"),
            ("changerelayicon", r#"["javascript:x"]"#, "a URL"),
            ("changerelayicon", r#"["https:///x"]"#, "a URL"),
            ("createrole", r#"[""]"#, "the id of a role"),
            ("createrole", r#"["a","b","c",361]"#, "a hue from 0 to 360"),
            ("createrole", r#"["a","b","c",[1,2,3]]"#, "a whole number"),
            ("assignrole", r#"["ab","a"]"#, "a public key"),
        ] {
            let fault = call(&format!(r#"{{"method":"{method}","params":{params}}}"#));
            let text = fault.unwrap_err().to_string();
            assert!(text.contains(words), "{method} {params}: {text}");
        }
        let long = "x".repeat(NAME_CHARS_MAX + 1);
        let fault = call(&format!(r#"{{"method":"changerelayname","params":["{long}"]}}"#));
        assert!(fault.unwrap_err().to_string().ends_with("more than 200 characters"));
    }
}
