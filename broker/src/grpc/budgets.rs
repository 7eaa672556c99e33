//! Budgets over the wire.

use gpulease_proto::v1;
use gpulease_words::{Bytes, Reason, Uid};
use tonic::Status;

use super::Services;
use super::encode::{account_path, denied};
use crate::budgets::{Listed, NotChanged, Origin, Setting, Telling};
use crate::liveness::Caller;
use crate::settings::{Account, Key};
use crate::users::Names;

impl Services {
    pub(super) async fn try_set_budget(
        &self,
        caller: &Caller,
        request: v1::SetBudgetRequest,
    ) -> Result<Listed, NotChanged> {
        let account = account_of(request.account).await?;
        let read = |setting: v1::BudgetSetting| {
            setting.key.parse().map(|key: Key| (key, setting.value)).map_err(NotChanged::Malformed)
        };
        let settings = request.settings.into_iter().map(read).collect::<Result<Vec<_>, _>>()?;
        if settings.is_empty() {
            let why = "nothing is set; name settings, like limit = 20GiB".to_owned();
            return Err(NotChanged::Malformed(why));
        }
        if let Some((key, _)) = twice(&settings) {
            let word = key.word();
            return Err(NotChanged::Malformed(format!(
                "{word} is set twice, and only one can hold; write {word} once"
            )));
        }
        let (who, named) = self.names_of(caller, &account).await;
        let telling = Telling { who: &who, account: &named };
        let listed = self.budgets.set(&account, &settings, telling).await?;
        self.names.prepare(users_of(std::slice::from_ref(&listed))).await;
        Ok(listed)
    }

    pub(super) async fn try_remove_budget(
        &self,
        caller: &Caller,
        request: v1::RemoveBudgetRequest,
    ) -> Result<(), NotChanged> {
        let account = account_of(request.account).await?;
        let key = Some(request.key).filter(|key| !key.is_empty());
        let key = key.map(|key| key.parse()).transpose().map_err(NotChanged::Malformed)?;
        let (who, named) = self.names_of(caller, &account).await;
        self.budgets.remove(&account, key, Telling { who: &who, account: &named }).await
    }

    pub(super) async fn budget_list(&self) -> v1::ListBudgetsReply {
        let listed = self.budgets.list().await;
        self.names.prepare(users_of(&listed)).await;
        let kept_in = self.budgets.kept_in().map(|path| path.display().to_string());
        v1::ListBudgetsReply {
            budgets: listed.iter().map(|listed| account_budget(listed, &self.names)).collect(),
            kept_in: kept_in.unwrap_or_default(),
        }
    }

    /// The caller and the account as people call them.
    async fn names_of(&self, caller: &Caller, account: &Account) -> (String, String) {
        let user = match account {
            Account::User(uid) => Some(*uid),
            Account::Host | Account::Group(_) | Account::EachUser | Account::Job(_) => None,
        };
        self.names.prepare(user.into_iter().chain([caller.uid])).await;
        (self.names.known_or_number(caller.uid), account_path(&account.to_string(), &self.names))
    }
}

/// The first that is there a second time.
fn twice(settings: &[(Key, String)]) -> Option<&(Key, String)> {
    settings
        .iter()
        .enumerate()
        .find(|(i, (key, _))| settings[..*i].iter().any(|(k, _)| k == key))
        .map(|(_, s)| s)
}

/// Reads an account's name beside the runtime: the name service may be slow.
async fn account_of(name: String) -> Result<Account, NotChanged> {
    let read = tokio::task::spawn_blocking(move || Account::named(&name)).await;
    read.unwrap_or_else(|_| Err("the broker is stopping".to_owned())).map_err(NotChanged::Malformed)
}

fn users_of(listed: &[Listed]) -> Vec<Uid> {
    let own = |listed: &Listed| match listed.account {
        Account::User(uid) => Some(uid),
        Account::Host | Account::Group(_) | Account::EachUser | Account::Job(_) => None,
    };
    listed.iter().flat_map(|each| each.members.iter().copied().chain(own(each))).collect()
}

pub(super) fn account_budget(listed: &Listed, names: &Names) -> v1::AccountBudget {
    v1::AccountBudget {
        account: account_path(&listed.account.to_string(), names),
        settings: listed.settings.iter().map(setting).collect(),
        members: listed.members.iter().map(|uid| names.known_or_number(*uid)).collect(),
    }
}

fn setting(setting: &Setting) -> v1::BudgetSetting {
    let origin = match setting.origin {
        Origin::File => v1::BudgetOrigin::File,
        Origin::RunTime => v1::BudgetOrigin::RunTime,
    };
    v1::BudgetSetting {
        key: setting.key.word().to_owned(),
        value: setting.text.clone(),
        origin: origin.into(),
        bytes: setting.bytes.map(Bytes::get),
    }
}

/// The refusal.
///
/// # Errors
/// What is no refusal: the file system failed.
pub(super) fn not_changed(why: &NotChanged, names: &Names) -> Result<v1::Denied, Status> {
    match why {
        NotChanged::Refused(refusal) => Ok(denied(refusal, names)),
        NotChanged::Malformed(why) => {
            Ok(v1::Denied { reason: Reason::Malformed.word().to_owned(), message: why.clone() })
        }
        NotChanged::Unkept { .. } => Err(Status::internal(why.to_string())),
    }
}
