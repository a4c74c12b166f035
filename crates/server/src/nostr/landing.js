// Keeps the counts fresh while somebody looks, and copies the address.
const find = (id) => document.getElementById(id);

async function refresh() {
  if (document.hidden) return;
  try {
    const answer = await fetch("/counts");
    if (!answer.ok) return;
    for (const [id, text] of Object.entries(await answer.json())) {
      if (find(id)) find(id).textContent = text;
    }
  } catch {
    // The relay may be restarting; the next round asks again.
  }
}

setInterval(refresh, 5000);
document.addEventListener("visibilitychange", refresh);

// Browsers let only pages over https, and those of this machine, reach the clipboard.
if (navigator.clipboard) {
  const copy = find("copy");
  copy.hidden = false;
  copy.addEventListener("click", async () => {
    await navigator.clipboard.writeText(find("url").textContent);
    copy.textContent = "Copied";
  });
}
