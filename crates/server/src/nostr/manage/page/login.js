// Logs in with the key of a browser extension (NIP-07), which signs the request (NIP-98).
const button = document.getElementById("key-login");
const fault = document.getElementById("key-fault");

async function logIn() {
  if (!window.nostr) throw new Error("This browser has no extension with a Nostr key (NIP-07).");
  const url = new URL(button.dataset.action, location.href).href;
  const event = await window.nostr.signEvent({
    kind: 27235,
    created_at: Math.floor(Date.now() / 1000),
    tags: [["u", url], ["method", "POST"], ["payload", button.dataset.payload]],
    content: "",
  });
  const answer = await fetch(url, {
    method: "POST",
    headers: { Authorization: `Nostr ${btoa(JSON.stringify(event))}` },
    body: "login",
  });
  if (!answer.ok) throw new Error(await answer.text());
  location.assign(button.dataset.next);
}

if (button) {
  button.hidden = false;
  button.addEventListener("click", async () => {
    fault.hidden = button.disabled = true;
    try {
      await logIn();
    } catch (error) {
      fault.textContent = error?.message ?? String(error);
      fault.hidden = false;
    }
    button.disabled = false;
  });
}
