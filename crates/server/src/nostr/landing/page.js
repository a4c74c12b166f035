// Refreshes the counts while the page is visible, and copies the address.
const find = (id) => document.getElementById(id);

// The page may be below the path of a proxy.
const counts = new URL("counts", document.currentScript.src);

async function refresh() {
  if (document.hidden) return;
  try {
    const answer = await fetch(counts);
    if (!answer.ok) return;
    for (const [id, text] of Object.entries(await answer.json())) {
      if (find(id)) find(id).textContent = text;
    }
  } catch {
    // The relay may be restarting; the next round tries again.
  }
}

setInterval(refresh, 5000);
document.addEventListener("visibilitychange", refresh);

// Browsers give access to the clipboard only to pages over https and to pages of this machine.
if (navigator.clipboard) {
  const copy = find("copy");
  copy.hidden = false;
  copy.addEventListener("click", async () => {
    await navigator.clipboard.writeText(find("url").textContent);
    copy.textContent = "Copied";
  });
}
