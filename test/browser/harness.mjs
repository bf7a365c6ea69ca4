// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// What every test of a page needs: Chromium, a page that fails the test when the browser
// complains or asks another host, accessibility, and screenshots.
import { chromium } from 'playwright-core';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { mkdir } from 'node:fs/promises';

const axe = createRequire(import.meta.url).resolve('axe-core/axe.min.js');

// The flags keep Chromium from asking its maker's hosts.
const flags = ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run',
  '--disable-background-networking', '--disable-component-update', '--disable-sync'];

export const sizes = { wide: { width: 1280, height: 900 }, narrow: { width: 360, height: 740 } };

export class Browser {
  constructor(url, pictures) {
    this.url = url.replace(/\/$/, '');
    this.pictures = pictures;
    this.complaints = [];
  }

  async launch() {
    this.browser = await chromium.launch({ executablePath: process.env.CHROMIUM || '/usr/bin/chromium', args: flags });
    if (this.pictures) await mkdir(this.pictures, { recursive: true });
  }

  async close() { await this.browser.close(); }

  // open opens a page at a path of the console. expected lists the statuses that may be
  // answered besides those below 400.
  async open(path, { size = sizes.wide, colours = 'light', scale = 1, expected = [], script = true } = {}) {
    const context = await this.browser.newContext({
      viewport: size, colorScheme: colours, deviceScaleFactor: scale, javaScriptEnabled: script,
      timezoneId: 'UTC', locale: 'en-GB', acceptDownloads: true, reducedMotion: 'reduce',
    });
    await context.grantPermissions(['clipboard-read', 'clipboard-write'], { origin: this.url });
    const page = await context.newPage();
    this.watch(page, path, expected);
    await page.goto(this.url + path, { waitUntil: 'networkidle' });
    return page;
  }

  // watch notes what no page may do.
  watch(page, path, expected) {
    const complain = text => this.complaints.push(`${path}: ${text}`);
    page.on('console', m => {
      if (['error', 'warning'].includes(m.type()) && !expected.some(s => m.text().includes(`status of ${s}`))) complain(`console: ${m.text()}`);
    });
    page.on('pageerror', e => complain(`script: ${e.message}`));
    page.on('request', r => {
      const to = new URL(r.url());
      if (!['data:', 'blob:', 'file:'].includes(to.protocol) && to.origin !== new URL(this.url).origin) complain(`a request to elsewhere: ${r.url()}`);
    });
    page.on('response', r => {
      if (r.status() >= 400 && !expected.includes(r.status())) complain(`${r.status()} of ${r.url()}`);
    });
  }

  // accessible returns the findings of axe-core that are serious or critical.
  async accessible(page) {
    // Not by a script element: the content security policy refuses that.
    await page.evaluate(await (await import('node:fs/promises')).readFile(axe, 'utf8'));
    const result = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ['violations'] }));
    return result.violations.filter(v => ['serious', 'critical'].includes(v.impact))
      .map(v => `${v.id} (${v.impact}): ${v.help}: ${v.nodes.slice(0, 3).map(n => n.html.slice(0, 160)).join(' | ')}`);
  }

  // overflows reports whether the page is wider than its window, so that reading needs
  // scrolling in two directions.
  async overflows(page) {
    return page.evaluate(() => document.documentElement.scrollWidth > document.documentElement.clientWidth + 1);
  }

  async picture(page, name, { full = false } = {}) {
    if (this.pictures) await page.screenshot({ path: join(this.pictures, `${name}.png`), fullPage: full, animations: 'disabled' });
  }
}
